//! Lists the policies, and what they make of a model's blocks.

use flow_checkpoint::Policy;
use flow_core::{ModelSpec, RegionKind};

fn main() {
    let spec = ModelSpec {
        architecture: "mine".into(),
        stacks: vec![("blocks".into(), 4)],
        regions: vec![RegionKind::Attention, RegionKind::Mlp],
        ..ModelSpec::default()
    };
    for (name, meaning) in Policy::all() {
        println!("{name}: {meaning}");
    }
    for policy in [
        Policy::Full { split: true },
        Policy::BlockSkip { every: 2 },
        Policy::AttnOnly { split: false },
    ] {
        println!("{policy}: {:?}", policy.assign(&spec));
    }
}
