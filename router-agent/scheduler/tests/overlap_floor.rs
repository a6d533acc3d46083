//! What the canonical custom policy does with and without overlap data, through Dynamo's own scheduler.

#![expect(
    clippy::unwrap_used,
    reason = "helpers outside of test functions fail loudly too"
)]

mod support;

use scheduler::Policy;
use scheduler::dynamo::KvSchedulerError;
use scheduler::overlap_floor::{MIN_DEVICE_OVERLAP_BLOCKS, OverlapFloor};
use schemas::{Revision, WorkerType};

use support::{PATIENCE, Router, query_with_overlap, router, set, tracked};

fn started(floor: u64) -> Router {
    let floor = OverlapFloor::new(WorkerType::Aggregated, floor).unwrap();
    router(Policy::Live(Box::new(floor)), 4)
}

/// The worker that gets a prompt of which some workers hold blocks.
async fn pick(router: &Router, overlap: &[(u64, usize)]) -> Result<u64, KvSchedulerError> {
    let picked = router
        .scheduler
        .select_without_admission(query_with_overlap(160, overlap))
        .await?;
    Ok(picked.response.best_worker.worker_id)
}

#[tokio::test]
async fn workers_below_the_floor_get_nothing_and_the_lightest_of_the_others_is_picked() {
    let router = started(4);
    let matches = [(0, 3), (1, 4), (2, 9)];
    // Load on worker 2 makes 1 the lightest that holds enough; 3 is lighter than both, and holds nothing.
    let mut request = tracked("load", 160);
    request.allowed_worker_ids = Some([2].into());
    router.scheduler.schedule_request(request).await.unwrap();
    assert_eq!(pick(&router, &matches).await.unwrap(), 1);

    router
        .control
        .update(Revision(0), &set(MIN_DEVICE_OVERLAP_BLOCKS, 5), PATIENCE)
        .await
        .unwrap();
    assert_eq!(
        pick(&router, &matches).await.unwrap(),
        2,
        "the floor rose past worker 1"
    );
    let low = set(MIN_DEVICE_OVERLAP_BLOCKS, 0);
    router
        .control
        .update(Revision(1), &low, PATIENCE)
        .await
        .unwrap();
    assert_ne!(
        pick(&router, &matches).await.unwrap(),
        2,
        "without a floor the busy worker is the worst"
    );
}

#[tokio::test]
async fn a_prompt_that_nobody_holds_goes_to_the_lightest_worker() {
    let router = started(4);
    for id in 0..3 {
        let mut request = tracked(&format!("load-{id}"), 160);
        request.allowed_worker_ids = Some([id].into());
        router.scheduler.schedule_request(request).await.unwrap();
    }
    assert_eq!(pick(&router, &[]).await.unwrap(), 3);
}

#[tokio::test]
async fn a_prompt_that_nobody_holds_enough_of_is_refused_until_the_floor_is_lowered() {
    let router = started(4);
    let refused = pick(&router, &[(0, 3), (1, 1)]).await.unwrap_err();
    assert!(
        matches!(refused, KvSchedulerError::AllEligibleWorkersFiltered),
        "{refused}"
    );
    router
        .control
        .update(Revision(0), &set(MIN_DEVICE_OVERLAP_BLOCKS, 3), PATIENCE)
        .await
        .unwrap();
    assert_eq!(pick(&router, &[(0, 3), (1, 1)]).await.unwrap(), 0);
}
