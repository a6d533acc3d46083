//! What goes wrong beside messages: processes, disks, clocks, links, the broker, frontends, and the log itself.

use bytes::Bytes;
use router_agent::testing::FakeRouter;
use schemas::{LogId, ParameterValue, PolicyKey, PolicyKind, Position, Scope};

use crate::client::model;
use crate::event::Event;
use crate::frontends::THRESHOLDS;
use crate::net::{Item, Node};
use crate::plan::{Destruction, MS, SECOND};
use crate::world::{World, parameter};

/// One thing that goes wrong, or ends going wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Act {
    /// Something of what the world knows.
    Something,
    /// A process starts.
    Start(Node),
    /// Its links are whole again.
    Mend(Node),
    /// The broker is back.
    Back,
    /// The log is hit.
    Destroy,
    /// The operator takes the log that is there for the right one.
    Adopt,
}

/// How one kind of fault strikes a node, or whatever it strikes.
type Strike = fn(&mut World, Node);

impl World {
    fn some_node(&mut self) -> Node {
        let services = self.services.len();
        let at = self.rng.index(services + self.agents.len());
        if self.rng.permille(400) || at < services {
            Node::Service(self.rng.index(services))
        } else {
            Node::Agent(at - services)
        }
    }

    /// Something goes wrong, or ends going wrong.
    pub fn act(&mut self, act: Act) {
        match act {
            Act::Something => self.something(),
            Act::Start(node) => self.start(node),
            Act::Mend(node) => self.mend(node),
            Act::Back => self.back(),
            Act::Destroy => {
                if self.healed_at.is_none() {
                    self.destroy();
                }
            }
            Act::Adopt => self.adopt(),
        }
    }

    /// Starts a process that is not running.
    pub fn start(&mut self, node: Node) {
        if self.process(node).up {
            return;
        }
        self.trace(|| format!("{node:?} starts"));
        match node {
            Node::Service(i) => self.start_service(i),
            Node::Agent(i) => self.start_agent(i),
        }
    }

    fn something(&mut self) {
        if self.healed_at.is_some() {
            return;
        }
        let faults = self.faults;
        let node = self.some_node();
        let kinds: [(bool, Strike); 13] = [
            (faults.partitions, World::cut),
            (faults.kills, World::kill),
            (faults.power, World::power),
            (faults.wipes, World::wipe),
            (faults.clocks, World::leap),
            (faults.frozen, |world, _| world.freeze()),
            (faults.broker_away, |world, _| world.away()),
            (faults.churn, |world, _| world.churn()),
            (faults.drift, |world, _| world.drift()),
            (faults.future, |world, _| world.future()),
            (faults.full_disks, World::fill),
            (faults.stalls, World::stall),
            (self.plan.old > 0, World::upgrade),
        ];
        let on: Vec<_> = kinds.iter().filter(|(on, _)| *on).collect();
        if !on.is_empty() {
            let (_, act) = on[self.rng.index(on.len())];
            act(self, node);
        }
    }

    fn cut(&mut self, node: Node) {
        let (sends, receives, mark) = match self.rng.range(0, 2) {
            0 => (false, false, "cut off both ways"),
            1 => (false, true, "cut off from the broker"),
            _ => (true, false, "cut off from answers"),
        };
        self.marks.hit(mark);
        let lasts = *self
            .rng
            .pick(&[50 * MS, 500 * MS, 4 * SECOND, 20 * SECOND, 45 * SECOND]);
        self.trace(|| format!("{node:?} {mark} for {} ms", lasts / MS));
        let process = self.process(node);
        (process.sends, process.receives) = (sends, receives);
        self.at(lasts, Event::Fault(Act::Mend(node)));
    }

    fn mend(&mut self, node: Node) {
        let process = self.process(node);
        (process.sends, process.receives) = (true, true);
        let epoch = process.epoch;
        if self.rng.permille(700) {
            self.at(
                MS,
                Event::Delivery {
                    to: node,
                    epoch,
                    feed: 0,
                    item: Item::LinkRestored,
                },
            );
        }
        if let Node::Service(i) = node {
            let kept: Vec<_> = self.broker.board.values().cloned().collect();
            for (status, at) in kept {
                if self.now.saturating_sub(at) < 60 * SECOND {
                    self.tell_board(i, status);
                }
            }
        }
    }

    fn end(&mut self, node: Node, power: bool) {
        if !self.process(node).up {
            return;
        }
        self.trace(|| format!("{node:?} ends, power lost: {power}"));
        match node {
            Node::Service(i) => self.stop_service(i),
            Node::Agent(i) => self.stop_agent(i, power),
        }
        let down = self.rng.range(10 * MS, 6 * SECOND);
        self.at(down, Event::Fault(Act::Start(node)));
    }

    fn kill(&mut self, node: Node) {
        self.marks.hit(match node {
            Node::Service(_) => "service killed",
            Node::Agent(_) => "agent killed",
        });
        self.end(node, false);
    }

    fn power(&mut self, node: Node) {
        self.marks.hit(match node {
            Node::Service(_) => "service loses power",
            Node::Agent(_) => "agent loses power",
        });
        self.end(node, true);
    }

    fn wipe(&mut self, node: Node) {
        self.end(node, true);
        let folder = self.rng.permille(400);
        self.marks.hit(match (node, folder) {
            (Node::Service(_), false) => "service store wiped",
            (Node::Service(_), true) => "service folder wiped",
            (Node::Agent(_), false) => "agent copy wiped",
            (Node::Agent(_), true) => "agent folder wiped",
        });
        match node {
            Node::Service(i) => self.services[i].disk.wipe(folder),
            Node::Agent(i) => {
                let disk = &mut self.agents[i].disk;
                disk.copies.clear();
                if folder {
                    disk.memory.wipe();
                    disk.started = None;
                }
            }
        }
    }

    fn leap(&mut self, node: Node) {
        let hours = self.rng.range(1, 3) * 3_600_000;
        let ms = i64::try_from(hours).unwrap_or(0);
        let back = self.rng.permille(500);
        self.marks.hit(if back {
            "clock leaps back"
        } else {
            "clock leaps forward"
        });
        self.process(node).offset_ms += if back { -ms } else { ms };
    }

    fn freeze(&mut self) {
        let feeds: Vec<u64> = self.broker.consumers.keys().copied().collect();
        if !feeds.is_empty() {
            let feed = feeds[self.rng.index(feeds.len())];
            if let Some(consumer) = self.broker.consumers.get_mut(&feed) {
                consumer.frozen = true;
                self.marks.hit("consumer stops silently");
            }
        }
    }

    fn away(&mut self) {
        self.marks.hit("broker away");
        let lasts = *self.rng.pick(&[300 * MS, 3 * SECOND, 12 * SECOND]);
        self.broker.away_until = self.now + lasts;
        self.at(lasts, Event::Fault(Act::Back));
    }

    fn back(&mut self) {
        if self.broker.away_until > self.now {
            return;
        }
        self.forget_consumers();
    }

    /// Consumers live in memory.
    fn forget_consumers(&mut self) {
        let gone = std::mem::take(&mut self.broker.consumers);
        for (_, consumer) in gone {
            if self.rng.permille(700) {
                self.at(
                    MS,
                    Event::Delivery {
                        to: consumer.node,
                        epoch: consumer.epoch,
                        feed: 0,
                        item: Item::LinkRestored,
                    },
                );
            }
        }
    }

    fn churn(&mut self) {
        let at = self.rng.index(self.frontends.len());
        let now = self.now;
        let ids: Vec<_> = self.frontends[at].fake.routers.keys().copied().collect();
        match self.rng.range(0, 3) {
            0 => {
                self.marks.hit("frontend restarts");
                let down = self.rng.range(10 * MS, 3 * SECOND);
                let fresh: Vec<_> = (0..self.frontends[at].serves.len())
                    .map(|_| self.new_router())
                    .collect();
                let mut fresh = fresh.into_iter();
                let spare = self.new_router();
                let frontend = &mut self.frontends[at];
                frontend.start(now, || fresh.next().unwrap_or(spare));
                frontend.down_until = now + down;
            }
            1 if !ids.is_empty() => {
                let id = ids[self.rng.index(ids.len())];
                let fresh = self.new_router();
                let frontend = &mut self.frontends[at];
                if let Some(gone) = frontend.fake.routers.remove(&id) {
                    self.marks.hit("router recreated");
                    let born = self.frontends[at]
                        .serves
                        .iter()
                        .find(|served| served.key == gone.key)
                        .cloned()
                        .unwrap_or_else(|| FakeRouter::new(gone.key.clone(), gone.startup.clone()));
                    self.frontends[at].fake.routers.insert(fresh, born);
                    self.frontends[at].made.insert(fresh, now);
                }
            }
            2 if ids.len() > 1 => {
                let id = ids[self.rng.index(ids.len())];
                self.frontends[at].fake.routers.remove(&id);
                self.marks.hit("router retired");
            }
            _ => {
                if let Some(id) = ids.first() {
                    let until = now + self.rng.range(SECOND, 8 * SECOND);
                    self.frontends[at].hidden = Some((*id, until));
                    self.marks.hit("router left out of a listing");
                }
            }
        }
    }

    fn drift(&mut self) {
        let at = self.rng.index(self.frontends.len());
        let now = self.now;
        let value = *self.rng.pick(&[0.0, 0.3, 0.6]);
        let frontend = &mut self.frontends[at];
        if self.rng.permille(250) {
            let model = frontend.startup.keys().next().cloned();
            if let Some(model) = model {
                let values = [(parameter(THRESHOLDS[0]), ParameterValue::number(value))];
                let _ = frontend.fake.set_thresholds(&model, &values.into());
                frontend.foreign_thresholds = true;
                self.marks.hit("thresholds changed by somebody else");
            }
            return;
        }
        let ids: Vec<_> = frontend.fake.routers.keys().copied().collect();
        if ids.is_empty() {
            return;
        }
        let id = ids[self.rng.index(ids.len())];
        let frontend = &mut self.frontends[at];
        let Some(revision) = frontend.fake.routers.get(&id).map(|router| router.revision) else {
            return;
        };
        let patch = [(
            parameter("router_temperature"),
            Some(ParameterValue::number(value)),
        )];
        if frontend.fake.apply(id, revision, &patch.into()).is_ok() {
            frontend.foreign.insert(id, now);
            self.marks.hit("router changed by somebody else");
        }
    }

    /// A later version writes a record that nobody here understands.
    fn future(&mut self) {
        if self.broker.store.is_none() || self.broker.away_until > self.now {
            return;
        }
        let key = PolicyKey {
            kind: PolicyKind::WorkerSelection,
            scope: Scope {
                model: Some(model(self.rng.index(self.plan.models))),
                ..Scope::default()
            },
        };
        let subject = key.subject();
        let id = self.new_uuid();
        let text = format!(
            r#"{{"specversion":"1.0","id":"{id}","source":"/router-policy","type":"router-policy.policies.changed.v9","subject":"{subject}","policies":"{subject}","data":{{}}}}"#
        );
        self.broker.force(&subject, &Bytes::from(text));
        self.marks.hit("record of a future version");
        self.stored_last();
    }

    fn fill(&mut self, node: Node) {
        let until = self.now + self.rng.range(SECOND, 10 * SECOND);
        self.marks.hit("service store cannot be written");
        match node {
            Node::Service(i) => self.services[i].full_until = until,
            Node::Agent(i) => self.agents[i].full_until = until,
        }
    }

    fn stall(&mut self, node: Node) {
        self.marks.hit(match node {
            Node::Service(_) => "service stands still",
            Node::Agent(_) => "agent stands still",
        });
        let until = self.now + self.rng.range(100 * MS, 20 * SECOND);
        self.process(node).stalled_until = until;
    }

    fn upgrade(&mut self, node: Node) {
        if !self.process(node).old {
            return;
        }
        self.end(node, false);
        self.process(node).old = false;
        match node {
            // A store of another vocabulary is set aside.
            Node::Service(i) => self.services[i].disk.wipe(false),
            Node::Agent(i) => {
                self.marks.hit("agent upgraded");
                for kept in &mut self.agents[i].disk.copies {
                    kept.outdated = true;
                }
            }
        }
    }

    fn destroy(&mut self) {
        let log_id = LogId(self.new_uuid());
        let made = self.broker.made + 1;
        let told = self.rng.permille(500);
        let Some(store) = &mut self.broker.store else {
            return;
        };
        match self.plan.destruction {
            Destruction::None => {}
            Destruction::Recreated | Destruction::Deleted => {
                self.oracle.cut(None);
                self.broker.store = None;
                self.marks.hit("log deleted");
                if self.plan.destruction == Destruction::Recreated {
                    self.broker.create(log_id);
                    self.marks.hit("log made anew");
                }
            }
            Destruction::Restored => {
                let keep = store.entries.len() / 2;
                store.entries.truncate(keep);
                store.last = store
                    .entries
                    .last()
                    .map_or(Position::START, |entry| entry.position);
                if told {
                    store.made = made;
                    self.broker.made = made;
                }
                let last = store.last;
                self.oracle.cut(Some(last));
                self.marks.hit("log put back to an older state");
            }
        }
        self.trace(|| format!("destroyed: {:?}", self.plan.destruction));
        // A server that restarts forgets its consumers.
        self.forget_consumers();
    }

    /// True when what a node has read is not what the log says.
    pub fn strayed(&self, log_id: Option<LogId>, state: &schemas::state::State, old: bool) -> bool {
        let Some(store) = &self.broker.store else {
            return state.position > Position::START;
        };
        if state.position == Position::START {
            return log_id.is_some_and(|known| known != store.log_id);
        }
        log_id != Some(store.log_id)
            || state.position > store.last
            || self
                .oracle
                .since(state.position, old)
                .next()
                .is_none_or(|real| real.tails != state.tails || real.policies != state.policies)
    }
}
