//! Draws parameters, worker tables and requests.

use std::collections::{BTreeMap, HashMap, HashSet};

use dynamo_kv_router::protocols::{SharedCacheHits, WorkerConfigLike, WorkerId, WorkerWithDpRank};
use dynamo_kv_router::scheduling::SchedulingRequest;
use dynamo_kv_router::{WorkerLoadProjection, WorkerSelectionInput};
use schemas::WorkerType;
use schemas::parameter::{Range, TEMPERATURE_MIN, WEIGHT_MAX, WEIGHT_MIN, WORKER_SELECTION};

/// A role and its parameters.
#[derive(Debug)]
pub struct Drawn {
    pub role: WorkerType,
    pub conditional_decode: bool,
    values: BTreeMap<&'static str, f64>,
}

const TIERS: [&str; 3] = [
    "host_cache_hit_weight",
    "disk_cache_hit_weight",
    "shared_cache_multiplier",
];

impl Drawn {
    pub fn new(rng: &mut fastrand::Rng) -> Drawn {
        let role = WorkerType::ALL[rng.usize(..4)];
        let value = |rng: &mut fastrand::Rng, range: Range, default: f64| match rng.u8(..8) {
            0..2 => 0.0,
            2 => default,
            3 => power(rng, range),
            4 => f64::from(rng.u8(1..4)) / 4.0,
            _ => rng.f64(),
        };
        let values = WORKER_SELECTION.iter().map(|known| {
            (
                known.name,
                value(rng, known.range, known.default.unwrap_or(0.0)),
            )
        });
        Drawn {
            role,
            values: values.collect(),
            conditional_decode: rng.bool(),
        }
    }

    pub fn value(&self, name: &str) -> f64 {
        self.values[name]
    }

    /// What an operator would give: Dynamo 1.6.1 asks for cache inputs by the device credit alone, so without one the
    /// tier weights are left out (where they are given, Dynamo 1.7 and ours ask for cache inputs and 1.6.1 does not).
    pub fn given(&self) -> BTreeMap<&'static str, f64> {
        let mut given = self.values.clone();
        if self.value("overlap_score_credit") == 0.0 {
            given.retain(|name, _| !TIERS.contains(name));
        }
        given
    }

    /// What startup makes of it, for a patch that gets a live router there.
    pub fn resolved(&self) -> BTreeMap<&'static str, f64> {
        let mut resolved = self.values.clone();
        let plain_decode = self.role == WorkerType::Decode && !self.conditional_decode;
        if plain_decode || self.value("overlap_score_credit") == 0.0 {
            for name in TIERS.into_iter().chain(["overlap_score_credit"]) {
                resolved.insert(name, 0.0);
            }
        }
        resolved
    }

    pub fn covers(&self) -> Vec<String> {
        let conditional = if self.role == WorkerType::Decode && self.conditional_decode {
            ", conditional"
        } else {
            ""
        };
        let mut covers = vec![format!("role: {}{conditional}", self.role)];
        let chance = if self.value("router_temperature") > 0.0 {
            "above 0"
        } else {
            "0"
        };
        covers.push(format!("temperature: {chance}"));
        for (name, value) in &self.values {
            if *value == 0.0 {
                covers.push(format!("zero: {name}"));
            }
        }
        covers
    }
}

/// Small and large values alike, within the range.
fn power(rng: &mut fastrand::Rng, range: Range) -> f64 {
    let (low, high) = match range {
        Range::Fraction => (1e-6_f64, 1.0_f64),
        Range::Weight => (WEIGHT_MIN, WEIGHT_MAX),
        Range::Temperature => (TEMPERATURE_MIN, WEIGHT_MAX),
        Range::Tokens => (0.0, 0.0),
    };
    let exponent = low.log10() + rng.f64() * (high.log10() - low.log10());
    10_f64.powf(exponent).clamp(low, high)
}

pub struct Worker {
    ranks: u32,
    taints: HashSet<String>,
}

impl WorkerConfigLike for Worker {
    fn data_parallel_start_rank(&self) -> u32 {
        0
    }
    fn data_parallel_size(&self) -> u32 {
        self.ranks
    }
    fn max_num_batched_tokens(&self) -> Option<u64> {
        None
    }
    fn total_kv_blocks(&self) -> Option<u64> {
        Some(16_384)
    }
    fn taints(&self) -> &HashSet<String> {
        &self.taints
    }
}

/// Workers and one request.
pub struct Table {
    pub workers: HashMap<WorkerId, Worker>,
    request: SchedulingRequest,
    block_size: u32,
}

impl Table {
    pub fn new(rng: &mut fastrand::Rng) -> Table {
        // Few workers as often as many.
        let count = 2_f64.powf(rng.f64() * 9.0).round().clamp(1.0, 512.0) as u64;
        let block_size = [1, 3, 16, 17, 32, 64, 128, 512][rng.usize(..8)];
        let many_ranks = rng.u8(..5) == 0;
        let mut workers = HashMap::new();
        for id in 0..count {
            let taints = ["zone-a", "zone-b"]
                .into_iter()
                .filter(|_| rng.bool())
                .map(str::to_owned);
            let taints = taints.collect();
            let ranks = if many_ranks { rng.u32(1..4) } else { 1 };
            workers.insert(id, Worker { ranks, taints });
        }
        let prompt = if rng.u8(..20) == 0 {
            0
        } else {
            rng.usize(..20_000)
        };
        let mut request = scheduler::dynamo::plain_selection(prompt);
        request.track_prefill_tokens = rng.u8(..3) != 0;
        let blocks = prompt / block_size as usize;
        fill(rng, &mut request, &workers, blocks, block_size as usize);
        constrain(rng, &mut request, count);
        Table {
            workers,
            request,
            block_size,
        }
    }

    pub fn input(&self) -> WorkerSelectionInput<'_, Worker> {
        let eligibility = self.request.eligibility();
        WorkerSelectionInput::configured(&self.workers, &self.request, eligibility, self.block_size)
    }

    pub fn covers(&self) -> Vec<String> {
        let request = &self.request;
        let mut covers = vec![format!("prefill tracked: {}", request.track_prefill_tokens)];
        let facts = [
            (
                "request: tier matches",
                !request.overlap.tier_overlap_blocks.device.is_empty(),
            ),
            (
                "request: estimates only",
                request.overlap.tier_overlap_blocks.device.is_empty()
                    && !request.overlap.effective_overlap_blocks.is_empty(),
            ),
            ("request: shared hits", request.shared_cache_hits.is_some()),
            (
                "request: preferred taints",
                !request.routing_constraints.preferred_taints.is_empty(),
            ),
            ("request: pinned", request.pinned_worker.is_some()),
            ("request: allow list", request.allowed_worker_ids.is_some()),
            ("request: empty prompt", request.isl_tokens == 0),
        ];
        covers.extend(
            facts
                .iter()
                .filter(|fact| fact.1)
                .map(|fact| fact.0.to_owned()),
        );
        covers
    }
}

/// Loads and overlaps. Small numbers make ties.
fn fill(
    rng: &mut fastrand::Rng,
    request: &mut SchedulingRequest,
    workers: &HashMap<WorkerId, Worker>,
    blocks: usize,
    block_size: usize,
) {
    let spread = [1, 4, 300][rng.usize(..3)];
    let (tiers, estimates) = (rng.u8(..4) != 0, rng.u8(..6) != 0);
    for (id, worker) in workers {
        for rank in 0..worker.ranks {
            let worker = WorkerWithDpRank::new(*id, rank);
            if rng.u8(..12) != 0 {
                let load = WorkerLoadProjection {
                    active_prefill_tokens: rng.usize(..spread) * rng.usize(1..64),
                    active_decode_blocks: rng.usize(..spread),
                    active_requests: rng.usize(..spread.min(40)),
                    additional_active_blocks: rng.usize(..spread),
                };
                request.worker_loads.insert(worker, load);
            }
            let mut some =
                |share: u8| (rng.u8(..3) < share).then(|| rng.usize(..=blocks.min(spread)));
            let (device, host, disk) = (some(2), some(1), some(1));
            let overlap = &mut request.overlap;
            if tiers {
                let tiers = &mut overlap.tier_overlap_blocks;
                for (tier, found) in [
                    (&mut tiers.device, device),
                    (&mut tiers.host_pinned, host),
                    (&mut tiers.disk, disk),
                ] {
                    tier.extend(found.map(|found| (worker, found)));
                }
            }
            if estimates && let Some(device) = device {
                let weighted = device as f64 + 0.75 * host.unwrap_or(0) as f64;
                overlap.effective_overlap_blocks.insert(worker, weighted);
                overlap
                    .effective_cached_tokens
                    .insert(worker, (weighted * block_size as f64) as usize);
            }
        }
    }
    if rng.u8(..3) == 0 {
        let hits: Vec<bool> = (0..blocks.min(400)).map(|_| rng.bool()).collect();
        request.shared_cache_hits = Some(SharedCacheHits::from_hits(&hits));
    }
}

/// Pins, allow lists and preferences.
fn constrain(rng: &mut fastrand::Rng, request: &mut SchedulingRequest, count: u64) {
    if rng.u8(..3) == 0 {
        let preferred = [
            ("zone-a".to_owned(), rng.f32() * 2.0 - 1.0),
            ("zone-b".to_owned(), rng.f32()),
        ];
        request.routing_constraints.preferred_taints = preferred.into_iter().collect();
    }
    if rng.u8(..12) == 0 {
        request
            .routing_constraints
            .required_taints
            .insert("zone-a".to_owned());
    }
    if rng.u8(..25) == 0 {
        request.pinned_worker = Some(WorkerWithDpRank::new(rng.u64(..count), 0));
    } else if rng.u8(..10) == 0 {
        let allowed = (0..count).filter(|_| rng.bool()).collect();
        request.allowed_worker_ids = Some(allowed);
    }
}
