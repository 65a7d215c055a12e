//! The user's command line. It decides nothing: it asks the coordinator's admin API and prints what
//! that says; `up` and `demo` start the coordinator and agents as processes.

pub mod apply;
pub mod arguments;
pub mod client;
pub mod cluster;
pub mod delete;
pub mod demo;
pub mod dev_cluster;
pub mod failure;
pub mod get;
pub mod import;
pub mod kubernetes;
pub mod process;
pub mod shadow;
pub mod signals;
pub mod table;
pub mod title;
pub mod up;
pub mod why;

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches};

use crate::arguments::{Arguments, Command};
pub use crate::client::Caller;
use crate::client::Client;
use crate::failure::{Failure, Format};
use crate::kubernetes::ClusterChoice;

/// Runs one command of the program that the user called. Exit code 0: done, 1: the server or
/// the input says no, 2: wrong usage.
pub fn run(caller: Caller, arguments: impl IntoIterator<Item = OsString>) -> ExitCode {
    let name = caller.name();
    let command = Arguments::command().name(name).bin_name(name);
    let parsed =
        command.try_get_matches_from(arguments).and_then(|matches| Arguments::from_arg_matches(&matches));
    let arguments = match parsed {
        Ok(arguments) => arguments,
        Err(error) => {
            // `--help` and `--version` come this way too, with exit code 0. A closed pipe is no error.
            let _ = error.print();
            return if error.use_stderr() { ExitCode::from(2) } else { ExitCode::SUCCESS };
        }
    };
    let format = if arguments.json { Format::Json } else { Format::Text };
    match dispatch(caller, arguments, format) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.print(format);
            ExitCode::from(1)
        }
    }
}

fn dispatch(caller: Caller, arguments: Arguments, format: Format) -> Result<(), Failure> {
    let cluster = ClusterChoice {
        kubeconfig: arguments.kubeconfig,
        context: arguments.context,
        phalanx_namespace: arguments.phalanx_namespace,
    };
    let server = arguments.server;
    let find = || Client::find(caller, server, &cluster);
    match arguments.command {
        Command::Demo(options) => demo::run(&options, format),
        Command::Up(options) => up::up(&options, format),
        Command::Down(options) => up::down(&options, format),
        Command::DevCluster(options) => dev_cluster::run(&options, format),
        Command::Apply(options) => apply::run(&find()?, &options, format),
        Command::Get(options) => get::run(&find()?, &options, format),
        Command::Why(options) => why::run(&find()?, &options, format),
        Command::Delete(options) => delete::run(&find()?, &options, format),
        Command::Import(options) => import::run(&options, format),
        Command::Child(options) => Err(process::become_child(&options)),
    }
}
