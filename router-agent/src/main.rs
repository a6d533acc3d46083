//! The program `router-agent`: only wires the command line, the log and the agent.

mod cli;
mod host;

use std::io::IsTerminal as _;
use std::process::ExitCode;

use clap::Parser as _;
use tokio::signal::unix::{SignalKind, signal};

use cli::{Cli, CliError, Command, Run};

fn main() -> ExitCode {
    let cli = Cli::parse();
    let filter = tracing_subscriber::EnvFilter::try_from_env("ROUTER_AGENT_LOG_LEVEL")
        // Dynamo's crate says a line for every selection.
        .unwrap_or_else(|_| {
            tracing_subscriber::EnvFilter::new("info,async_nats=warn,dynamo_kv_router=warn")
        });
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .init();
    if let Err(why) = event_log::open_files::raise() {
        tracing::warn!(error = %why, "the limit of open files could not be raised");
    }
    let outcome = match cli.command {
        Command::Run(run) => runtime().and_then(|runtime| runtime.block_on(follow(&run))),
        Command::Frontend(host) => runtime().and_then(|runtime| runtime.block_on(host.run())),
        Command::Adopt { state } => adopt(&state),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("router-agent: {}", chain(&error));
            ExitCode::FAILURE
        }
    }
}

fn runtime() -> Result<tokio::runtime::Runtime, CliError> {
    Ok(tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?)
}

async fn follow(run: &Run) -> Result<(), CliError> {
    let mut config = run.config()?;
    let options = run.options()?;
    config.identity = options.identity.clone();
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    let wiring = event_log::connect_reader(&run.log, options).await?;
    let agent = router_agent::start(config, wiring).await?;
    tracing::info!(agent = %agent.agent(), log = %run.log, frontends = run.frontends.len(), "started");
    let stopped = tokio::select! {
        _ = terminate.recv() => true,
        _ = interrupt.recv() => true,
        () = agent.ended() => false,
    };
    let in_time = agent.stop().await;
    if !in_time {
        tracing::warn!("some tasks did not stop in time");
    }
    if stopped {
        Ok(())
    } else {
        Err(CliError::Ended)
    }
}

fn adopt(state: &std::path::Path) -> Result<(), CliError> {
    match router_agent::adopt(state).map_err(CliError::Adopt)? {
        Some(aside) => println!("the local copy is now {}", aside.display()),
        None => println!("there was no local copy"),
    }
    Ok(())
}

/// The whole chain of an error in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        words = format!("{words}: {error}");
        cause = error.source();
    }
    words
}
