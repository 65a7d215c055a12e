//! `phalanx`, the user's command line.

fn main() -> std::process::ExitCode {
    phalanx_cli::run(phalanx_cli::Caller::Own, std::env::args_os())
}
