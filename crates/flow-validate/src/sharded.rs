//! What forbids that processes share out the weights of blocks, `distributed.shard = "weights"`.

use crate::checkpoint_policy;
use crate::codes::NOT_ON_SEVERAL;
use flow_checkpoint::Policy;
use flow_config::{AcceleratorEntry, AdapterLayout, Config, Diagnostic, DistillationFacts, Finetune, Shard};

/// Accelerators that weights in parts are not for, and why.
const WITHOUT: [(&str, &str); 2] = [
    (
        "graph_capture",
        "recorded calls read weights where they were, and with `distributed.shard = \"weights\"` a block has them only while it computes",
    ),
    (
        "low_precision",
        "`distributed.shard = \"weights\"` cuts weights into parts and sends them as numbers, and `low_precision` stores them as codes \
         with a scale for each row",
    ),
];

/// Everything that forbids a config whose `ranks` processes share out the weights of blocks; nothing where they do not. `distillation` is
/// what its algorithm asks for, if that is a distillation.
pub fn sharded_weights(
    config: &Config,
    ranks: usize,
    distillation: Option<DistillationFacts>,
) -> Vec<Diagnostic> {
    if ranks < 2 || config.distributed.shard != Shard::Weights {
        return Vec::new();
    }
    let mut found = Vec::new();
    let mut refuse = |path: &str, message: &str, help: &str| {
        let refused = Diagnostic::error(NOT_ON_SEVERAL, message).path(path).help(help);
        found.push(refused.related(["distributed.shard"]));
    };
    let is_full = config.model.finetune == Finetune::Full;
    if !is_full && config.model.weights.is_none() && config.model.path.is_none() {
        refuse(
            "model.weights",
            "frozen weights that no file gives are held by checkpoints, which one process writes, and with `distributed.shard = \"weights\"` \
             none has them whole",
            "name a file or folder of weights, or set `distributed.shard = \"optimizer\"`",
        );
    }
    if keeps_blocks(&checkpoint_policy(config)) {
        refuse(
            "checkpointing.policy",
            "a block that is not computed again keeps its weights for the backward pass, so all blocks would be whole at one time in spite of \
             `distributed.shard = \"weights\"`",
            "set `checkpointing.policy` to \"full\", \"attn-only\", \"every-nth-linear\" or \"regions\"; no policy changes a bit of the run",
        );
    }
    let acceleration = &config.acceleration;
    let lists = [
        ("acceleration.shared", &acceleration.shared),
        ("acceleration.rollout", &acceleration.rollout),
        ("exploration.accelerators", &config.exploration.accelerators),
    ];
    for (list, entries) in lists {
        for (name, why) in WITHOUT {
            let is_it = |entry: &AcceleratorEntry| entry.name.replace('-', "_").eq_ignore_ascii_case(name);
            if let Some(at) = entries.iter().position(is_it) {
                let help = "remove it, or set `distributed.shard = \"optimizer\"`";
                refuse(&format!("{list}.{at}.name"), why, help);
            }
        }
    }
    if !is_full && config.lora.export.contains(&AdapterLayout::Merged) {
        refuse(
            "lora.export",
            "one process would write all weights, and with `distributed.shard = \"weights\"` none has them whole",
            "leave `merged` out; afterwards, one process writes it: `flow-train train CONFIG --set 'lora.export=[\"merged\"]' --resume latest`",
        );
    }
    let several = distillation.is_some_and(|facts| facts.adapters + facts.models + facts.networks > 0);
    if several {
        refuse(
            "algorithm.kind",
            "this algorithm has other networks beside the one that it trains, and `distributed.shard = \"weights\"` shares out the weights of \
             that one alone",
            "take an algorithm without teachers and without networks beside the student, or set `distributed.shard = \"optimizer\"`",
        );
    }
    found
}

/// What forbids a pretraining whose `ranks` processes share out this; nothing where it is the optimizer's state alone.
pub fn sharded_pretraining(shard: Shard, ranks: usize) -> Option<Diagnostic> {
    (ranks > 1 && shard == Shard::Weights).then(|| {
        Diagnostic::error(
            NOT_ON_SEVERAL,
            "`distributed.shard = \"weights\"` is for reinforcement learning: a pretraining has all weights on every process",
        )
        .path("distributed.shard")
        .help("set it to \"optimizer\", which shares out the optimizer's state of a pretraining, or to \"none\"")
    })
}

/// Whether a policy may keep what some block computes, and with it the block's weights.
fn keeps_blocks(policy: &Policy) -> bool {
    match policy {
        Policy::None | Policy::Budget { .. } => true,
        Policy::BlockSkip { every } => *every != 1,
        _ => false,
    }
}
