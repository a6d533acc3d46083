//! Who is in a world, and when the work and the faults are.

use crate::agent::Agent;
use crate::client::{Step, model};
use crate::event::Event;
use crate::frontends::{Frontend, THRESHOLDS, router};
use crate::nemesis::*;
use crate::net::Node;
use crate::plan::{Destruction, MS, SECOND};
use crate::service::Service;
use crate::world::{World, name, parameter};
use schemas::scope::{Endpoint, RouterKey};
use schemas::{LogId, ParameterValue, WorkerType};

impl World {
    /// Makes everybody and plans the work.
    pub fn build(&mut self) {
        for _ in 0..self.plan.services {
            let old = self.rng.permille(self.plan.old);
            self.services.push(Service::new(old));
        }
        for i in 0..self.plan.agents {
            let group = self.rng.permille(300).then(|| name("canary"));
            let id = schemas::AgentId(name(&format!("agent-{i}")));
            let old = self.rng.permille(self.plan.old);
            self.agents.push(Agent::new(id, group, old));
            let count = self.rng.range(1, self.plan.frontends_max as u64);
            let mut owned = Vec::new();
            for _ in 0..count {
                owned.push(self.frontends.len());
                let frontend = self.frontend();
                self.frontends.push(frontend);
            }
            self.owned.push(owned);
        }
        if self.rng.permille(800) {
            let log_id = LogId(self.new_uuid());
            self.broker.create(log_id);
        }
        for i in 0..self.plan.services {
            let delay = self.rng.range(0, 500 * MS);
            self.at(delay, Event::Fault(Act::Start(Node::Service(i))));
        }
        for i in 0..self.plan.agents {
            let delay = self.rng.range(0, 3 * SECOND);
            self.at(delay, Event::Fault(Act::Start(Node::Agent(i))));
        }
        let work = self.plan.work_us;
        for _ in 0..self.plan.commands {
            // Bunches, so that writers race.
            let at = self.rng.range(SECOND, work);
            let at = if self.rng.permille(400) {
                at / SECOND * SECOND
            } else {
                at
            };
            self.at(at, Event::Client(Step::Begin));
        }
        for _ in 0..self.faults.events {
            let at = self.rng.range(0, work);
            self.at(at, Event::Fault(Act::Something));
        }
        if self.plan.destruction != Destruction::None {
            let at = self.rng.range(work / 3, work);
            self.at(at, Event::Fault(Act::Destroy));
        }
        self.at(5 * SECOND, Event::Heartbeats);
        self.at(work, Event::Heal);
    }

    pub(crate) fn frontend(&mut self) -> Frontend {
        let mut serves = Vec::new();
        let mut startup = std::collections::BTreeMap::new();
        for index in 0..self.plan.models {
            if self.rng.permille(300) && index > 0 {
                continue;
            }
            let types: &[WorkerType] = if self.rng.permille(300) {
                &[WorkerType::Prefill, WorkerType::Decode]
            } else {
                &[WorkerType::Aggregated]
            };
            for worker_type in types {
                let (plain, cold) = (self.rng.permille(50), self.rng.permille(120));
                let key = RouterKey {
                    model: model(index),
                    worker_type: *worker_type,
                    endpoint: Endpoint {
                        namespace: name("dynamo"),
                        component: name("backend"),
                        endpoint: name("generate"),
                    },
                };
                serves.push(router(key, plain, cold));
            }
            let thresholds = THRESHOLDS
                .iter()
                .map(|threshold| {
                    let set = self.rng.permille(200);
                    let value = if *threshold == "active_prefill_tokens_threshold" {
                        ParameterValue::integer(7)
                    } else {
                        ParameterValue::number(0.7)
                    };
                    (parameter(threshold), set.then_some(value))
                })
                .collect();
            startup.insert(model(index), thresholds);
        }
        let mut frontend = Frontend {
            fake: router_agent::testing::FakeFrontend::default(),
            made: std::collections::BTreeMap::new(),
            foreign: std::collections::BTreeMap::new(),
            foreign_thresholds: false,
            startup,
            serves,
            down_until: 0,
            hidden: None,
            process: 0,
        };
        let now = self.now;
        frontend.start(now, || self.new_router());
        frontend
    }
}
