//! Model checks of the swap: shuttle runs the very code of `swap.rs` under thousands of schedules.
//!
//! Checked in each: no selection sees a mixture; exactly one writer wins a revision; a change whose caller gave up is
//! never seated, one whose caller lost the race for its ticket always is; what is reported is never older than an answer.
//!
//! Shuttle takes every atomic for sequentially consistent. That loses nothing here: data is behind locks, the count of
//! letters is a hint, and the ticket is one word.

#![expect(
    clippy::unwrap_used,
    reason = "helpers outside of test functions fail loudly too"
)]

mod sync {
    pub(crate) use shuttle::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
    pub(crate) use shuttle::sync::{Arc, Mutex, MutexGuard};
    pub(crate) use std::sync::PoisonError;
}
#[path = "../src/swap.rs"]
mod swap;

use shuttle::sync::atomic::{AtomicBool, Ordering};
use shuttle::sync::{Arc, mpsc};
use shuttle::thread;

use swap::{Letter, Offer, Post, Reply, Seat, Ticket};

/// Bound: schedules per check; a few seconds each.
const SCHEDULES: usize = 2_000;

/// Scorer and picker of a policy. They belong together.
struct Parts {
    scorer: u64,
    picker: u64,
}

struct Answer(mpsc::Sender<Result<u64, u64>>);

impl Reply<u64> for Answer {
    fn answer(self, outcome: Result<u64, u64>) {
        let _ = self.0.send(outcome);
    }
}

type Model = Post<Parts, u64, Answer>;

struct Sent {
    ticket: Arc<Ticket>,
    answer: mpsc::Receiver<Result<u64, u64>>,
}

fn send(post: &Model, expected: u64) -> Sent {
    let (reply, answer) = mpsc::channel();
    let ticket = Arc::new(Ticket::default());
    let revision = expected + 1;
    let policy = Parts {
        scorer: revision,
        picker: revision,
    };
    let letter = Letter {
        ticket: Arc::clone(&ticket),
        offer: Some(Box::new(Offer {
            expected,
            policy,
            view: revision,
        })),
        reply: Answer(reply),
    };
    assert!(post.send(letter).is_ok());
    Sent { ticket, answer }
}

/// Selects until told to stop, and once more after that. Returns the revision that it ended with.
fn actor(post: &Model, stop: &AtomicBool) -> u64 {
    let mut seat = Seat::new(Parts {
        scorer: 0,
        picker: 0,
    });
    loop {
        let last = stop.load(Ordering::SeqCst);
        seat.turn(post);
        let scorer = seat.policy().scorer;
        thread::yield_now();
        let picker = seat.policy().picker;
        assert_eq!(scorer, picker, "a selection saw a mixture");
        if last {
            return picker;
        }
    }
}

fn scene(writers: impl Fn(&Arc<Model>) -> Vec<thread::JoinHandle<u64>>) {
    let post = Arc::new(Model::new(0));
    let stop = Arc::new(AtomicBool::new(false));
    let (of_actor, stop_actor) = (Arc::clone(&post), Arc::clone(&stop));
    let actor = thread::spawn(move || actor(&of_actor, &stop_actor));
    let won: u64 = writers(&post)
        .into_iter()
        .map(|writer| writer.join().unwrap())
        .sum();
    stop.store(true, Ordering::SeqCst);
    assert_eq!(actor.join().unwrap(), won, "a change was lost or made up");
    assert_eq!(post.view(), won);
    post.sweep();
}

#[test]
fn racing_writers_win_each_revision_once_and_no_selection_sees_a_mixture() {
    let check = || {
        scene(|post| {
            let write = |post: Arc<Model>| {
                thread::spawn(move || {
                    let mut won = 0;
                    for _ in 0..2 {
                        let expected = post.view();
                        match send(&post, expected).answer.recv().unwrap() {
                            Ok(revision) => {
                                assert_eq!(revision, expected + 1);
                                assert!(
                                    post.view() >= revision,
                                    "the report is older than the answer"
                                );
                                won += 1;
                            }
                            Err(current) => assert_ne!(current, expected),
                        }
                        post.sweep();
                    }
                    won
                })
            };
            (0..3).map(|_| write(Arc::clone(post))).collect()
        });
    };
    shuttle::check_random(check, SCHEDULES);
    shuttle::check_pct(check, SCHEDULES, 3);
}

#[test]
fn a_change_whose_caller_gave_up_is_seated_exactly_when_the_ticket_says_so() {
    let check = || {
        scene(|post| {
            let patient = Arc::clone(post);
            let hasty = Arc::clone(post);
            vec![
                thread::spawn(move || {
                    let sent = send(&patient, patient.view());
                    u64::from(sent.answer.recv().unwrap().is_ok())
                }),
                thread::spawn(move || {
                    let sent = send(&hasty, hasty.view());
                    thread::yield_now();
                    if sent.ticket.give_up() {
                        return 0;
                    }
                    u64::from(sent.answer.recv().unwrap().is_ok())
                }),
            ]
        });
    };
    shuttle::check_random(check, SCHEDULES);
    shuttle::check_pct(check, SCHEDULES, 3);
}
