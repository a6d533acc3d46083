//! `router-policy dev` without a frontend: three demo frontends whose traffic follows the policy, also after a restart.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

use std::collections::VecDeque;
use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// Lines per frontend that are looked at together: chance moves single seconds.
const WINDOW: usize = 4;
const PATIENCE: Duration = Duration::from_secs(60);
const FRONTENDS: [&str; 3] = ["demo-1", "demo-2", "demo-3"];

struct Demo {
    child: Child,
    url: String,
    lines: std::io::Lines<BufReader<ChildStdout>>,
}

/// What the view says of one frontend in one second.
#[derive(Debug, Clone)]
struct Second {
    top_share: u64,
    hits: u64,
    values: String,
}

/// `None` for other lines, and for seconds without requests.
fn second(line: &str) -> Option<(usize, Second)> {
    let frontend = FRONTENDS.iter().position(|name| line.starts_with(*name))?;
    let (shares, rest) = line.split_once("KV hits")?;
    let number = |text: &str| text.trim().trim_end_matches('%').trim().parse::<u64>().ok();
    let shares = shares.split(" w").skip(1);
    let shares: Option<Vec<u64>> = shares.map(|one| number(one.get(1..)?)).collect();
    let (hits, rest) = rest.split_once('%')?;
    let values = rest.split_once("/s")?.1.trim().to_owned();
    let (top_share, hits) = (shares?.into_iter().max()?, number(hits)?);
    let second = Second {
        top_share,
        hits,
        values,
    };
    Some((frontend, second))
}

/// Means of a window.
#[derive(Debug, Clone, Copy)]
struct Mean {
    top_share: u64,
    hits: u64,
}

impl Demo {
    fn start(data: &Path) -> Demo {
        let mut child = Command::new(env!("CARGO_BIN_EXE_router-policy"))
            .args(["dev", "--listen", "127.0.0.1:0", "--data"])
            .arg(data)
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let url = lines.by_ref().map(Result::unwrap).find_map(|line| {
            let (_, url) = line.split_once("policies ")?;
            Some(url.trim().strip_suffix("/v1/policies")?.to_owned())
        });
        let url = url.expect("the banner has the URL");
        Demo { child, url, lines }
    }

    fn set(&self, assignment: &str) {
        let set = ["set", assignment, "--model", "demo-model", "--wait"];
        let status = Command::new(env!("CARGO_BIN_EXE_router-policy"))
            .args(set)
            .env("ROUTER_POLICY_SERVICE", &self.url)
            .stdout(Stdio::null())
            .status();
        assert!(status.unwrap().success(), "{assignment}: all three have it");
    }

    /// Reads on until every frontend's last seconds have these values and pass.
    fn until(&mut self, values: &str, passes: impl Fn(usize, Mean) -> bool) -> [Mean; 3] {
        let started = Instant::now();
        let mut windows: [VecDeque<Second>; 3] = Default::default();
        for line in self.lines.by_ref() {
            let line = line.unwrap();
            let Some((frontend, second)) = second(&line) else {
                continue;
            };
            let window = &mut windows[frontend];
            window.push_back(second);
            if window.len() > WINDOW {
                window.pop_front();
            }
            let found = [0, 1, 2].map(|at| mean(&windows[at], values));
            if let [Some(one), Some(two), Some(three)] = found {
                let means = [one, two, three];
                if means.iter().enumerate().all(|(at, mean)| passes(at, *mean)) {
                    return means;
                }
            }
            assert!(started.elapsed() < PATIENCE, "never so: {windows:#?}");
        }
        panic!("it ended");
    }

    fn stop(mut self) {
        let pid = self.child.id().to_string();
        let sent = Command::new("kill").args(["-INT", &pid]).status();
        assert!(sent.unwrap().success());
        // Read to the end, so that it never waits for a reader.
        let rest = self.lines.by_ref().map_while(Result::ok).count();
        assert!(rest > 0, "it says that it stops");
        assert_eq!(self.child.wait().unwrap().code(), Some(0), "a clean end");
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        // Only matters when an assertion failed before `stop`.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn mean(window: &VecDeque<Second>, values: &str) -> Option<Mean> {
    let full = window.len() == WINDOW && window.iter().all(|one| one.values == values);
    let sum = |of: fn(&Second) -> u64| window.iter().map(of).sum::<u64>() / WINDOW as u64;
    full.then(|| Mean {
        top_share: sum(|one| one.top_share),
        hits: sum(|one| one.hits),
    })
}

#[test]
fn a_newcomer_sees_shares_and_hits_follow_the_policy_on_all_three_and_a_restart_keeps_it() {
    let folder = std::env::temp_dir().join(format!("router-policy-demo-{}", std::process::id()));
    let mut demo = Demo::start(&folder);
    let before = demo.until("temperature 0  credit 1  revision 0", |_, mean| {
        mean.hits >= 70 && mean.top_share >= 36
    });
    demo.set("overlap_score_credit=0");
    let uncredited = "temperature 0  credit 0  revision 1";
    demo.until(uncredited, |at, mean| {
        mean.hits + 10 <= before[at].hits && mean.top_share < before[at].top_share
    });
    demo.stop();
    // New processes, new routers: the policy is in place, and the traffic is as the policy wants it.
    let mut again = Demo::start(&folder);
    again.until(uncredited, |at, mean| mean.hits + 10 <= before[at].hits);
    again.set("overlap_score_credit=null");
    again.until("temperature 0  credit 1  revision 2", |_, mean| {
        mean.hits >= 70
    });
    again.stop();
    std::fs::remove_dir_all(&folder).unwrap();
}
