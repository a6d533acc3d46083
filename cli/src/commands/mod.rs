//! The client commands: each asks the service and shows the answer.

mod audit;
mod change;
mod get;
mod history;
mod status;
mod wait;
mod watch;

use crate::arguments::Client as Command;
use crate::client::Client;
use crate::problem::Problem;

/// Runs one.
pub(crate) async fn run(command: Command, client: &Client, json: bool) -> Result<(), Problem> {
    match command {
        Command::Get(options) => get::run(options, client, json).await,
        Command::Set(options) => change::set(options, client, json).await,
        Command::Reset(options) => change::reset(options, client, json).await,
        Command::Revert(options) => change::revert(options, client, json).await,
        Command::History(options) => history::history(options, client, json).await,
        Command::Diff(options) => history::diff(options, client, json).await,
        Command::Audit(options) => audit::run(options, client, json).await,
        Command::Watch(options) => watch::run(options, client, json).await,
        Command::Status => status::run(client, json).await,
        Command::Wait(options) => wait::run(options, client, json).await,
    }
}
