//! KV events of the simulated workers reach Dynamo's index: what it knows of a prompt follows what the workers hold.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on panics")]

mod common;

use std::collections::BTreeSet;
use std::time::Duration;

use common::site::{Site, plan, quick, role};
use common::{name, values};
use router_agent::PolicyTarget as _;
use router_agent::frontend::{Hardware, ModelPlan, Placed, RolePlan};
use scheduler::busy::Thresholds;
use schemas::{Patch, Revision, WorkerType};

const BLOCK: usize = 16;

fn workers(workers: u64, kv_blocks: u32) -> ModelPlan {
    let hardware = Hardware {
        kv_blocks,
        ..quick()
    };
    plan(vec![RolePlan {
        workers,
        ..role(WorkerType::Aggregated, hardware)
    }])
}

/// A prompt of six full blocks and a rest, equal to no other.
fn prompt(number: u32) -> Vec<u32> {
    let tokens = 6 * BLOCK as u32 + 4;
    (0..tokens).map(|at| number * 1_000 + at).collect()
}

/// Serves a prompt to its end, and frees it.
async fn serve(site: &Site, tokens: &[u32]) -> Placed {
    let mut open = site.frontend.complete("m", tokens, 1).await.unwrap();
    while open.pieces.recv().await.is_some() {}
    site.idle().await;
    open.placed
}

/// Waits until the index knows so many blocks of a prompt at the worker that would get it. Events are applied by the index's
/// own thread, so not yet when a request ends.
async fn known(site: &Site, tokens: &[u32], blocks: usize) -> Placed {
    let mut last = None;
    let found = tokio::time::timeout(Duration::from_secs(10), async {
        loop {
            let placed = site.frontend.select("m", tokens).await.unwrap();
            if placed.cached_tokens == blocks * BLOCK {
                return placed;
            }
            last = Some(placed);
            tokio::task::yield_now().await;
        }
    });
    let found = found.await;
    found.unwrap_or_else(|_| panic!("{blocks} blocks were never known; last: {last:?}"))
}

#[tokio::test]
async fn what_is_stored_hits_and_what_is_evicted_does_not() {
    let site = Site::open(Thresholds::default(), &[workers(1, 8)]).await;
    let (first, second) = (prompt(1), prompt(2));
    assert_eq!(serve(&site, &first).await.cached_tokens, 0);
    known(&site, &first, 6).await;
    assert_eq!(serve(&site, &first).await.cached_tokens, 6 * BLOCK);
    // Eight blocks are held: the second prompt pushes out four of the first.
    assert_eq!(serve(&site, &second).await.cached_tokens, 0);
    known(&site, &second, 6).await;
    known(&site, &first, 2).await;
    assert_eq!(serve(&site, &first).await.cached_tokens, 2 * BLOCK);
    known(&site, &second, 2).await;
    for other in 3..6 {
        serve(&site, &prompt(other)).await;
    }
    known(&site, &first, 0).await;
    assert_eq!(serve(&site, &first).await.cached_tokens, 0);
    assert!(site.frontend.stop().await);
}

#[tokio::test]
async fn a_removed_worker_takes_its_blocks_along_and_comes_back_empty() {
    let site = Site::open(Thresholds::default(), &[workers(2, 320)]).await;
    let tokens = prompt(1);
    let holder = serve(&site, &tokens).await.prefill_worker;
    assert_eq!(known(&site, &tokens, 6).await.prefill_worker, holder);
    assert!(site.frontend.remove_worker(&name("m"), holder).await);
    let placed = known(&site, &tokens, 0).await;
    assert_ne!(placed.prefill_worker, holder);
    assert!(
        site.frontend
            .add_worker(&name("m"), WorkerType::Aggregated, holder)
    );
    // Both are asked in time, and neither holds anything.
    let mut asked = BTreeSet::new();
    while asked.len() < 2 {
        let placed = site.frontend.select("m", &tokens).await.unwrap();
        assert_eq!(placed.cached_tokens, 0);
        asked.insert(placed.prefill_worker);
    }
    assert_ne!(serve(&site, &tokens).await.cached_tokens, 6 * BLOCK);
    assert!(site.frontend.stop().await);
}

/// How many of 40 prompts that are asked twice hit the second time.
async fn hits(site: &Site, from: u32, credited: bool) -> usize {
    let mut hits = 0;
    for number in from..from + 40 {
        let tokens = prompt(number);
        serve(site, &tokens).await;
        if credited {
            known(site, &tokens, 6).await;
        }
        hits += usize::from(serve(site, &tokens).await.cached_tokens == 6 * BLOCK);
    }
    hits
}

#[tokio::test]
async fn without_credit_hits_fall_and_with_it_they_rise_again() {
    let site = Site::open(Thresholds::default(), &[workers(4, 640)]).await;
    let target = site.frontend.target();
    let router = target.routers.list(None)[0].id;
    let credit = |patch: Patch, expected: u64| {
        let target = target.clone();
        async move {
            let applied = target.apply(router, Revision(expected), &patch).await;
            assert_eq!(applied.unwrap().revision, Revision(expected + 1));
        }
    };
    assert_eq!(hits(&site, 0, true).await, 40);
    let none = values(&[("overlap_score_credit", 0.0)]);
    let off: Patch = none
        .into_iter()
        .map(|(name, value)| (name, Some(value)))
        .collect();
    let on: Patch = off.keys().map(|name| (name.clone(), None)).collect();
    credit(off, 0).await;
    let spread = hits(&site, 100, false).await;
    assert!(spread < 30, "{spread} of 40, with one worker in four right");
    credit(on, 1).await;
    assert_eq!(hits(&site, 200, true).await, 40);
    assert!(site.frontend.stop().await);
}
