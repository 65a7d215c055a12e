//! `phalanx`, the user's command line.

fn main() -> std::process::ExitCode {
    phalanx_cli::run("phalanx", std::env::args_os())
}
