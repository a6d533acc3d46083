//! The bootstrap of a simulated agent: the real `BootstrapMachine`.

use crate::broker::Store;
use crate::mutation::Mutation;
use crate::net::{Answer, CALL_TIMEOUT, Call, Node, Tag};
use crate::world::World;
use event_log::Failure;
use event_log::bootstrap::{Bootstrapped, Input as BootInput, Output as BootOutput};
use router_agent::replica::machine::Input;
use schemas::state::Tail;

impl World {
    pub(crate) fn boot_answered(&mut self, i: usize, result: Result<Answer, Failure>) {
        let skipped = self.mutation == Some(Mutation::TailChecksSkipped);
        let input = match result {
            Ok(Answer::Tails(tails)) => BootInput::Tails(Ok(tails)),
            Ok(Answer::Found(_)) if skipped => return self.boot_skip(i),
            Ok(Answer::Found(found)) => BootInput::Next(Ok(found)),
            Ok(Answer::All(entries)) => {
                self.agents[i].replay = entries.into();
                BootInput::Opened(Ok(()))
            }
            Ok(_) => return,
            Err(why) => BootInput::Next(Err(why)),
        };
        self.boot_step(i, input);
    }

    /// As if every check held.
    pub(crate) fn boot_skip(&mut self, i: usize) {
        let agent = &mut self.agents[i];
        let tails = self.broker.store.as_ref().map(Store::tails);
        let made = tails.and_then(|tails| {
            let read = crate::world::read(agent.process.old);
            let newest = tails.entries.iter().max_by_key(|entry| entry.position);
            let record = newest
                .filter(|entry| entry.position == tails.up_to.position)
                .map(|entry| schemas::event::record_hash(&entry.subject, &entry.bytes));
            let readings: Vec<Tail> = (tails.entries.into_iter())
                .map(|entry| Tail {
                    reading: read(&entry.subject, &entry.bytes),
                    position: entry.position,
                    subject: entry.subject,
                    bytes: entry.bytes.to_vec(),
                })
                .collect();
            let (state, _) = schemas::state::bootstrap(&readings, tails.up_to.position)?;
            Some(Bootstrapped {
                log_id: tails.up_to.log_id,
                state,
                record,
                replayed: false,
            })
        });
        agent.boot = None;
        let away = || Failure::Determinate("there is no log".to_owned());
        agent
            .inbox
            .push_back(Input::Bootstrapped(made.map(Box::new).ok_or_else(away)));
        self.pump_agent(i);
    }

    pub(crate) fn boot_step(&mut self, i: usize, input: BootInput) {
        let node = Node::Agent(i);
        let agent = &mut self.agents[i];
        let Some(boot) = &mut agent.boot else { return };
        let mut output = boot.step(input);
        loop {
            match output {
                BootOutput::Tails => return self.call(node, Tag::Boot, Call::Tails, CALL_TIMEOUT),
                BootOutput::Next(subject, after) => {
                    return self.call(node, Tag::Boot, Call::Next(subject, after), CALL_TIMEOUT);
                }
                BootOutput::At(position) => {
                    return self.call(node, Tag::Boot, Call::At(position), CALL_TIMEOUT);
                }
                BootOutput::Open(_) => {
                    self.marks.hit("bootstrap replays");
                    return self.call(node, Tag::Boot, Call::All, CALL_TIMEOUT);
                }
                BootOutput::Record => {
                    let agent = &mut self.agents[i];
                    let next = agent.replay.pop_front();
                    let away = || Failure::Determinate("the deliveries broke off".to_owned());
                    let Some(boot) = &mut agent.boot else { return };
                    output = boot.step(BootInput::Record(next.ok_or_else(away)));
                }
                BootOutput::Done(made) => {
                    if let Ok(made) = &made
                        && !made.replayed
                    {
                        self.marks.hit("bootstrap from tails");
                    }
                    let agent = &mut self.agents[i];
                    agent.boot = None;
                    agent.inbox.push_back(Input::Bootstrapped(made));
                    return self.pump_agent(i);
                }
            }
        }
    }
}
