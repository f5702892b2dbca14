//! What of a config is not right, or not there yet, on several processes.

use crate::codes::{LANES, NOT_ON_SEVERAL};
use flow_config::{Config, DeviceKind, Diagnostic, GradientStorage, SumOrder, Transport};

/// Why so many ranks, lanes and micro-batches of an update do not fit each other, and how to mend it; none if they do.
pub fn lanes(ranks: usize, lanes: usize, micro_batches: usize) -> Option<(String, String)> {
    let divisors = |number: usize| {
        let all = (1..=number).filter(|divisor| number.is_multiple_of(*divisor));
        let all: Vec<String> = all.map(|divisor| divisor.to_string()).collect();
        all.join(", ")
    };
    if !micro_batches.is_multiple_of(lanes) {
        return Some((
            format!("{micro_batches} micro-batches of an update cannot be cut into {lanes} equal lanes"),
            format!(
                "set `distributed.lanes` to one of {}, or change `sampling.micro_batch` or `optimizer.gradient_accumulation`",
                divisors(micro_batches)
            ),
        ));
    }
    if !lanes.is_multiple_of(ranks) {
        return Some((
            format!("{lanes} lanes cannot be shared by {ranks} processes"),
            format!(
                "set `distributed.lanes` to a multiple of {ranks}, or start one of {} processes",
                divisors(lanes)
            ),
        ));
    }
    None
}

/// Why an accelerator of rollouts that learns from `audit_share` of its own samples cannot be used by so many ranks, and how to mend it; none
/// if it can.
pub fn learns_alone(ranks: usize, audit_share: f64) -> Option<(String, String)> {
    (ranks > 1 && audit_share > 0.0).then(|| {
        let problem = "an accelerator of `acceleration.rollout` compares some of its samples with exact ones and learns from them, which \
                       several processes would each do by their own samples";
        let help = "take another policy than `auto`, or start one process";
        (problem.to_owned(), help.to_owned())
    })
}

/// Everything that forbids a config on `ranks` processes. `group_wise` says whether a reward looks at whole groups.
pub fn several(config: &Config, ranks: usize, group_wise: bool) -> Vec<Diagnostic> {
    let mut found = geometry(config, ranks, group_wise);
    if ranks < 2 {
        return found;
    }
    let mut refuse = |path: &str, message: &str, help: &str| {
        found.push(Diagnostic::error(NOT_ON_SEVERAL, message).path(path).help(help));
    };
    if config.optimizer.gradients != GradientStorage::F32 {
        refuse(
            "optimizer.gradients",
            "gradients are exchanged in f32, so their sums would have other bits on several processes than on one",
            "set it to \"f32\", or start one process",
        );
    }
    let distributed = &config.distributed;
    let is_by_host = config.device.kind == DeviceKind::Cpu || distributed.transport == Transport::Tcp;
    if distributed.order == SumOrder::Nccl && is_by_host {
        refuse(
            "distributed.order",
            "NCCL adds gradients of NVIDIA GPUs, and here the host adds them",
            "set it to \"lanes\", or `device.kind = \"cuda\"` and `distributed.transport = \"auto\"`",
        );
    }
    if config.audit.drift_groups > 0 && config.audit.drift_every > 0 {
        refuse(
            "audit.drift_groups",
            "the groups that are sampled twice are those of one process",
            "set it to 0, or start one process; `flow-train drift` compares, too",
        );
    }
    found
}

/// Micro-batches of an optimizer step on all processes together; `None` where the iteration has no whole number of them.
pub(crate) fn accumulated(config: &Config) -> Option<usize> {
    let sampling = &config.sampling;
    let samples = sampling.prompts_per_step.checked_mul(sampling.group_size)?;
    if sampling.micro_batch == 0 || !samples.is_multiple_of(sampling.micro_batch) {
        return None;
    }
    match config.optimizer.gradient_accumulation {
        0 => Some(samples / sampling.micro_batch),
        accumulated => Some(accumulated),
    }
}

fn geometry(config: &Config, ranks: usize, group_wise: bool) -> Vec<Diagnostic> {
    let (sampling, lanes) = (&config.sampling, config.distributed.lanes);
    // A geometry that is impossible by itself is said elsewhere.
    let Some(accumulated) = accumulated(config) else {
        return Vec::new();
    };
    let lanes = if lanes == 0 { ranks } else { lanes };
    if let Some((message, help)) = self::lanes(ranks, lanes, accumulated) {
        return vec![
            Diagnostic::error(LANES, message)
                .path("distributed.lanes")
                .help(help),
        ];
    }
    if let Some(refused) = explored_groups(config, ranks, group_wise) {
        return vec![refused];
    }
    let own = accumulated / ranks * sampling.micro_batch;
    if ranks > 1 && group_wise && !own.is_multiple_of(sampling.group_size) {
        let message = format!(
            "a reward looks at whole groups, and the {own} samples that a process has of an update are no whole groups of {}",
            sampling.group_size
        );
        let help =
            "raise `optimizer.gradient_accumulation` or `sampling.micro_batch`, or start fewer processes";
        return vec![
            Diagnostic::error(NOT_ON_SEVERAL, message)
                .path("sampling.group_size")
                .help(help),
        ];
    }
    Vec::new()
}

/// Why the candidates of exploration cannot be shared by so many ranks; none if they can.
fn explored_groups(config: &Config, ranks: usize, group_wise: bool) -> Option<Diagnostic> {
    let (sampling, candidates) = (&config.sampling, config.exploration.candidates);
    if ranks < 2 || !group_wise || candidates == 0 {
        return None;
    }
    let batches = sampling.prompts_per_step.checked_mul(candidates)? / sampling.micro_batch;
    let are_whole =
        batches.is_multiple_of(ranks) && (batches / ranks * sampling.micro_batch).is_multiple_of(candidates);
    if are_whole {
        return None;
    }
    let message = format!(
        "a reward looks at whole groups, and {ranks} processes cannot each have whole groups of the {candidates} candidates of a prompt"
    );
    let refused = Diagnostic::error(NOT_ON_SEVERAL, message)
        .path("exploration.candidates")
        .help("make `sampling.prompts_per_step` a multiple of the processes and `exploration.candidates` one of `sampling.micro_batch`");
    Some(refused)
}
