//! The same command line as a kubectl plugin: `kubectl phalanx get gangs`.

fn main() -> std::process::ExitCode {
    phalanx_cli::run(phalanx_cli::KUBECTL_PLUGIN, std::env::args_os())
}
