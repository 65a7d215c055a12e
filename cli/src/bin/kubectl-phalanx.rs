//! The same command line as a kubectl plugin: `kubectl phalanx get gangs`.

fn main() -> std::process::ExitCode {
    phalanx_cli::run(phalanx_cli::Caller::Kubectl, std::env::args_os())
}
