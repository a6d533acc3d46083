//! The workload: clients that change policies, read before they write, repeat what they do not know the outcome of.

use std::collections::BTreeMap;

use schemas::decide::{Change, Command, Order, PolicyOrder};
use schemas::event::Actor;
use schemas::{
    CommandId, Hash, Name, ParameterValue, Patch, PolicyKey, PolicyKind, Rejection, Revision,
    Scope, WorkerType,
};
use service::writer::fingerprint::fingerprint;
use service::writer::{Outcome, WriteError};

use crate::event::Event;
use crate::frontends::{PARAMETERS, THRESHOLDS};
use crate::net::Node;
use crate::oracle::Claim;
use crate::plan::{MS, SECOND};
use crate::rng::Rng;
use crate::world::{World, name, parameter};

/// Something of a client.
#[derive(Debug, Clone)]
pub enum Step {
    /// A client wants something.
    Begin,
    /// A request is at a service.
    Arrive {
        /// Which service.
        service: usize,
        /// Which attempt.
        attempt: u64,
    },
    /// An answer is at the client; `None` = the connection broke.
    Reply {
        /// To which attempt.
        attempt: u64,
        /// What.
        outcome: Option<Box<Outcome>>,
    },
    /// The client waited long enough.
    GiveUp {
        /// For which attempt.
        attempt: u64,
    },
    /// The same again.
    Again {
        /// Which of the clients' wishes.
        wish: usize,
    },
}

/// Something that a client wants.
#[derive(Debug)]
pub struct Wish {
    /// Its command.
    pub command: Command,
    keyed: bool,
    tries: u32,
    /// Its key was used for another body.
    abused: bool,
    /// Nothing more is tried.
    pub settled: bool,
}

/// All clients.
#[derive(Debug, Default)]
pub struct Clients {
    /// What they want.
    pub wishes: Vec<Wish>,
    /// Attempts under way, and which wish and command each is of.
    attempts: BTreeMap<u64, (usize, Command)>,
}

const PATIENCE: u64 = 15 * SECOND;

impl World {
    /// One step of a client.
    pub fn client(&mut self, step: Step) {
        match step {
            Step::Begin => self.wish(),
            Step::Again { wish } => self.attempt(wish),
            Step::Arrive { service, attempt } => {
                let Some((_, command)) = self.clients.attempts.get(&attempt).cloned() else {
                    return;
                };
                if self.services[service].process.up {
                    let at = self.wall(Node::Service(service));
                    self.write_arrived(service, attempt, Command { at, ..command });
                } else {
                    self.reply_lost(attempt);
                }
            }
            Step::Reply { attempt, outcome } => {
                self.replied(attempt, outcome.map(|outcome| *outcome))
            }
            Step::GiveUp { attempt } => self.replied(attempt, None),
        }
    }

    fn wish(&mut self) {
        let service = self.rng.index(self.services.len());
        let id = CommandId(self.new_uuid());
        let order = self.order(service);
        let mut command = Command {
            command_id: id,
            actor: Actor {
                name: name("someone"),
                via: name("loopback"),
            },
            at: schemas::Timestamp::default(),
            reason: None,
            force: false,
            fingerprint: Hash::ZERO,
            order,
        };
        command.fingerprint = fingerprint(&command);
        let wish = self.clients.wishes.len();
        let keyed = self.rng.permille(700);
        self.clients.wishes.push(Wish {
            command,
            keyed,
            tries: 0,
            abused: false,
            settled: false,
        });
        self.attempt_at(wish, service);
        if keyed && self.rng.permille(120) {
            self.marks.hit("command sent twice at once");
            let other = self.rng.index(self.services.len());
            self.attempt_at(wish, other);
        }
        if keyed && self.rng.permille(30) {
            self.marks.hit("key used with another body");
            let body = self.order(service);
            let same = self.clients.wishes[wish].command.order == body;
            if !same {
                let mut command = self.clients.wishes[wish].command.clone();
                command.order = body;
                command.fingerprint = fingerprint(&command);
                self.clients.wishes[wish].abused = true;
                let other = self.rng.index(self.services.len());
                self.send(wish, other, command);
            }
        }
    }

    fn attempt(&mut self, wish: usize) {
        if self.clients.wishes[wish].settled {
            return;
        }
        let service = self.rng.index(self.services.len());
        if self.clients.wishes[wish].tries > 0 {
            self.marks.hit("command sent to another service");
        }
        self.attempt_at(wish, service);
    }

    fn attempt_at(&mut self, wish: usize, service: usize) {
        let it = &mut self.clients.wishes[wish];
        it.tries += 1;
        let command = it.command.clone();
        self.send(wish, service, command);
    }

    fn send(&mut self, wish: usize, service: usize, command: Command) {
        // A version that does not know sets refuses them as malformed.
        let set = matches!(&command.order, Order::ChangePolicies(orders) if orders.len() > 1);
        let old = set && self.services[service].process.old;
        let attempt = self.next_id();
        self.clients.attempts.insert(attempt, (wish, command));
        let delay = self.latency();
        if old {
            let outcome = None;
            return self.at(delay, Event::Client(Step::Reply { attempt, outcome }));
        }
        self.at(delay, Event::Client(Step::Arrive { service, attempt }));
        self.at(PATIENCE, Event::Client(Step::GiveUp { attempt }));
    }

    /// A service answers.
    pub fn reply(&mut self, _service: usize, attempt: u64, outcome: Outcome) {
        let delay = self.latency();
        let lost = self.faulty(|faults| faults.lost_replies);
        if lost {
            self.marks.hit("reply to a client lost");
        }
        // An acknowledgement counts as said, whether or not its client hears it. A refusal that was not heard does not: its
        // client asks again, and what is wanted may be right by then (a parameter was registered meanwhile).
        if !lost || outcome.is_ok() {
            self.judge_reply(attempt, &outcome);
        }
        let outcome = (!lost).then(|| Box::new(outcome));
        self.at(delay, Event::Client(Step::Reply { attempt, outcome }));
    }

    /// The connection breaks.
    pub fn reply_lost(&mut self, attempt: u64) {
        let outcome = None;
        self.at(MS, Event::Client(Step::Reply { attempt, outcome }));
    }

    fn judge_reply(&mut self, attempt: u64, outcome: &Outcome) {
        let Some((wish, command)) = self.clients.attempts.get(&attempt) else {
            return;
        };
        let (id, fingerprint) = (command.command_id, command.fingerprint);
        let others = |(id, (other, _)): (&u64, &(usize, Command))| other == wish && *id != attempt;
        let alone = !self.clients.attempts.iter().any(others);
        let wish = &self.clients.wishes[*wish];
        let claim = match outcome {
            Ok(written) => Some(Claim::Accepted(written.position)),
            Err(WriteError::Refused { rejection, .. }) => match **rejection {
                // "This version cannot judge it": no claim about other versions.
                Rejection::Stopped { .. } | Rejection::RegistryStopped { .. } => None,
                // The registry may change between two requests of one command that are under way at once.
                Rejection::UnknownParameter { .. } | Rejection::InvalidValue { .. } if !alone => {
                    None
                }
                _ => Some(Claim::Refused),
            },
            Err(WriteError::Lost { .. }) => Some(Claim::Refused),
            Err(WriteError::KeyReused { .. }) => (!wish.abused).then_some(Claim::Refused),
            Err(
                WriteError::Unavailable(_)
                | WriteError::Foreign(_)
                | WriteError::Store(_)
                | WriteError::Overloaded,
            ) => (!wish.keyed && wish.tries == 1).then_some(Claim::Refused),
            Err(WriteError::Unknown(_) | WriteError::Unreadable(_)) => None,
        };
        if let Some(claim) = claim {
            self.oracle.claimed(id, fingerprint, claim);
        }
    }

    fn replied(&mut self, attempt: u64, outcome: Option<Outcome>) {
        let Some((wish, command)) = self.clients.attempts.remove(&attempt) else {
            return;
        };
        let it = &mut self.clients.wishes[wish];
        if command.fingerprint != it.command.fingerprint {
            return;
        }
        let again = match outcome {
            Some(Ok(_)) => false,
            Some(Err(WriteError::Unknown(_))) => true,
            Some(Err(
                WriteError::Unavailable(_)
                | WriteError::Foreign(_)
                | WriteError::Store(_)
                | WriteError::Overloaded,
            )) => it.keyed || it.tries > 1,
            Some(Err(
                WriteError::Refused { .. }
                | WriteError::Lost { .. }
                | WriteError::KeyReused { .. }
                | WriteError::Unreadable(_),
            )) => false,
            // Without a key nothing can be asked about it any more.
            None => it.keyed,
        };
        if again && !it.settled {
            let pause = self.rng.range(100 * MS, 3 * SECOND);
            self.at(pause, Event::Client(Step::Again { wish }));
        } else {
            it.settled = true;
        }
    }

    fn order(&mut self, service: usize) -> Order {
        let old = self.services[service].process.old;
        match self.rng.range(0, 99) {
            0..=3 => Order::RegisterParameter {
                name: parameter("custom_a"),
                schema: serde_json::json!({ "type": "number", "maximum": self.rng.range(1, 9) }),
                expected: None,
            },
            4..=16 if !old => {
                let mut orders: Vec<PolicyOrder> = Vec::new();
                for _ in 0..self.rng.range(2, 3) {
                    let order = self.policy_order(service);
                    if orders.iter().all(|known| known.policy != order.policy) {
                        orders.push(order);
                    }
                }
                Order::ChangePolicies(orders)
            }
            _ => Order::ChangePolicies(vec![self.policy_order(service)]),
        }
    }

    fn policy_order(&mut self, service: usize) -> PolicyOrder {
        let models = self.plan.models;
        let policy = policy(&mut self.rng, models);
        let snapshot = &self.services[service].snapshot;
        let known = snapshot.state.policies.get(&policy);
        let current = known.map_or(Revision::ZERO, |document| document.revision);
        let expected = self.rng.permille(450).then_some(current);
        let change = match self.rng.range(0, 99) {
            0..=9 => Change::Reset,
            10..=24 if current.0 > 1 => self.revert(service, &policy, current),
            _ => Change::Patch(patch(&mut self.rng, policy.kind)),
        };
        PolicyOrder {
            policy,
            expected,
            change,
        }
    }

    /// An earlier revision, as the service finds it in its own history.
    fn revert(&mut self, service: usize, policy: &PolicyKey, current: Revision) -> Change {
        let to = Revision(self.rng.range(1, current.0 - 1));
        let records = &self.services[service].disk.records;
        let overlay = records.values().find_map(|record| {
            if !matches!(record.verdict, schemas::state::Verdict::Accepted { .. }) {
                return None;
            }
            match migrations::read(&record.subject, &record.bytes) {
                schemas::state::Reading::Known(record) => match record.event {
                    schemas::event::Event::PoliciesChanged { changes } => changes
                        .into_iter()
                        .find(|change| change.key() == *policy && change.revision == to)
                        .map(|change| change.overlay),
                    schemas::event::Event::ParameterRegistered { .. } => None,
                },
                schemas::state::Reading::Unknown { .. } => None,
            }
        });
        match overlay {
            Some(overlay) => Change::Revert { to, overlay },
            None => Change::Reset,
        }
    }
}

/// Names of models; ordinary ones look strange too.
#[must_use]
pub fn model(index: usize) -> Name {
    name(["meta/llama-3.1 8B", "*", "m>é"][index % 3])
}

fn policy(rng: &mut Rng, models: usize) -> PolicyKey {
    let threshold = rng.permille(150);
    let nobody = rng.permille(40);
    let model = match rng.range(0, 9) {
        _ if nobody => Some(name("served by nobody")),
        0..=2 => None,
        _ => Some(model(rng.index(models))),
    };
    let group = rng.permille(200).then(|| name("canary"));
    if threshold {
        return PolicyKey {
            kind: PolicyKind::BusyThreshold,
            scope: Scope {
                model,
                group,
                ..Scope::default()
            },
        };
    }
    let worker_type = match rng.range(0, 9) {
        0 => Some(WorkerType::Prefill),
        1 => Some(WorkerType::Decode),
        _ => None,
    };
    PolicyKey {
        kind: PolicyKind::WorkerSelection,
        scope: Scope {
            model,
            worker_type,
            endpoint: None,
            group,
        },
    }
}

fn patch(rng: &mut Rng, kind: PolicyKind) -> Patch {
    let mut patch = Patch::new();
    for _ in 0..rng.range(1, 3) {
        let null = rng.permille(250);
        let (name, value) = match kind {
            PolicyKind::WorkerSelection if rng.permille(15) => (
                "custom_a",
                ParameterValue::number(*rng.pick(&[0.5, 2.0, 5.0])),
            ),
            PolicyKind::WorkerSelection => {
                let (name, _) = *rng.pick(&PARAMETERS);
                (
                    name,
                    ParameterValue::number(*rng.pick(&[0.0, 0.25, 0.5, 1.0])),
                )
            }
            PolicyKind::BusyThreshold => match *rng.pick(&THRESHOLDS) {
                name @ "active_prefill_tokens_threshold" => {
                    (name, ParameterValue::integer(rng.range(0, 9)))
                }
                name => (name, ParameterValue::number(*rng.pick(&[0.0, 0.5, 0.9]))),
            },
        };
        patch.insert(parameter(name), (!null).then_some(value));
    }
    patch
}
