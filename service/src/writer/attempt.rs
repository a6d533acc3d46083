//! Moves the inputs and outputs of one write's [`super::machine`].

use bytes::Bytes;
use event_log::{CommitError, Committed, Failure, Head};
use schemas::Position;
use schemas::api::LogCondition;
use schemas::decide::{Command, Decision};
use tokio::time::Instant;

use super::machine::{Input, Looked, Output, Own, Waited, WriteMachine};
use super::{Outcome, Writer};

impl Writer {
    pub(super) async fn decide_and_commit(&self, command: &Command, deadline: Instant) -> Outcome {
        let mut machine = WriteMachine::new(command.clone());
        let mut output = Output::Look;
        loop {
            let input = match output {
                Output::Look => self.look(command).await,
                Output::Commit(decision) => {
                    Input::Committed(self.commit(command, &decision, deadline).await)
                }
                Output::AskHead => Input::Head(self.ask_head(deadline).await),
                Output::CatchUp(position) => Input::Waited(self.catch_up(position, deadline).await),
                Output::WaitFor(position) => {
                    let reached = self.projection.wait_for(position, deadline).await;
                    Input::Waited(if reached {
                        Waited::Reached
                    } else {
                        Waited::Late
                    })
                }
                Output::Read(position) => self.read(command, position).await,
                Output::Done(outcome) => return *outcome,
            };
            output = machine.step(input);
        }
    }

    async fn look(&self, command: &Command) -> Input {
        let snapshot = self.projection.snapshot();
        let (id, request) = (command.command_id, Some(command.fingerprint));
        let first = (self.projection)
            .read(move |store| store.command(id, request))
            .await;
        Input::Looked(Box::new(Looked {
            snapshot,
            first: first.map_err(|why| why.to_string()),
            foreign: self.foreign(),
        }))
    }

    async fn read(&self, command: &Command, position: Position) -> Input {
        let (id, request) = (command.command_id, Some(command.fingerprint));
        let found = (self.projection)
            .read(move |store| Ok((store.record(position)?, store.command(id, request)?)));
        let (record, first) = match found.await {
            Ok((record, first)) => (Ok(record), Ok(first)),
            Err(why) => (Err(why.to_string()), Err(why.to_string())),
        };
        Input::Read(Box::new(Own {
            record,
            first,
            snapshot: self.projection.snapshot(),
        }))
    }

    async fn commit(
        &self,
        command: &Command,
        decision: &Decision,
        deadline: Instant,
    ) -> Result<Committed, CommitError> {
        event_log::commit(
            &*self.log,
            &decision.subject,
            decision.expected_tail,
            Bytes::from(decision.record.to_bytes()),
            command.command_id,
            deadline.saturating_duration_since(Instant::now()),
        )
        .await
    }

    fn foreign(&self) -> Option<String> {
        let condition = self.projection.condition();
        (condition.log == LogCondition::Foreign).then(|| condition.detail.unwrap_or_default())
    }

    async fn ask_head(&self, deadline: Instant) -> Result<Head, Failure> {
        let silent = || Failure::Determinate("it does not answer".to_owned());
        tokio::time::timeout_at(deadline, self.log.head())
            .await
            .unwrap_or_else(|_| Err(silent()))
    }

    async fn catch_up(&self, position: Position, deadline: Instant) -> Waited {
        // A foreign log's head may never be reached; the condition says so before the deadline does.
        let mut conditions = self.projection.conditions();
        tokio::select! {
            reached = self.projection.wait_for(position, deadline) => {
                if reached { Waited::Reached } else { Waited::Late }
            }
            _ = conditions.wait_for(|condition| condition.log == LogCondition::Foreign) => {
                Waited::Foreign(self.foreign().unwrap_or_default())
            }
        }
    }
}
