//! `router-policy`: the service, the one-command trial, and the client for people and scripts.
//!
//! Only wires: arguments to commands, results to exit codes.

mod adopt;
mod arguments;
mod assignment;
mod client;
mod commands;
mod demo;
mod dev;
mod nats_config;
mod output;
mod problem;
mod select;
mod serve;

use std::process::ExitCode;

use clap::Parser as _;

use crate::arguments::{Arguments, Command};
use crate::problem::Problem;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let json = arguments.json;
    match run(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            output::problem(&problem, json);
            ExitCode::from(problem.exit_code())
        }
    }
}

fn run(arguments: Arguments) -> Result<(), Problem> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| Problem::Failed(format!("no async runtime: {error}")))?;
    runtime.block_on(async {
        match arguments.command {
            Command::Serve(options) => serve::run(options).await,
            Command::Dev(options) => dev::run(options).await,
            Command::Adopt(options) => adopt::run(&options, arguments.json),
            Command::NatsConfig(options) => nats_config::run(&options),
            Command::Client(command) => {
                let client = client::Client::new(&arguments.service)?;
                commands::run(command, &client, arguments.json).await
            }
        }
    })
}
