//! Every operation runs exactly as often as a policy says.

use crate::support::*;
use flow_checkpoint::Policy;
use flow_checkpoint::profiler::{OpProfiler, Usage};
use flow_core::device::ComputeDevice;
use flow_kernels::CpuKernels;
use flow_models::{Dit, DitConfig, Position, Trained};
use std::collections::BTreeMap;

/// Usage of the operations of one pass.
fn usage(subject: &Subject, policy: &Policy) -> BTreeMap<&'static str, Usage> {
    let profiler = OpProfiler::on_processor();
    let plan = profiler.plan(&plan_of(CpuKernels::default()));
    let engine = engine(policy, &*subject.model);
    subject.pass(&with_engine(&plan, &engine), 1);
    profiler.usage()
}

fn forwards(usage: &BTreeMap<&'static str, Usage>) -> BTreeMap<&'static str, u64> {
    usage
        .iter()
        .map(|(name, usage)| (*name, usage.forwards))
        .collect()
}

fn backwards(usage: &BTreeMap<&'static str, Usage>) -> BTreeMap<&'static str, u64> {
    usage
        .iter()
        .map(|(name, usage)| (*name, usage.backwards))
        .collect()
}

const FULL: Policy = Policy::Full { split: false };
const ATTN_ONLY: Policy = Policy::AttnOnly { split: false };

#[test]
fn attention_runs_once_twice_and_once_per_block_under_none_full_and_attn_only() {
    let subject = Subject::dit();
    let count = |policy: &Policy| usage(&subject, policy)["attention"].forwards;
    let layers = LAYERS as u64;
    assert_eq!(count(&Policy::None), layers);
    assert_eq!(count(&FULL), 2 * layers);
    assert_eq!(count(&ATTN_ONLY), layers);
    assert_eq!(count(&Policy::Full { split: true }), 2 * layers);
    assert_eq!(count(&Policy::AttnOnly { split: true }), layers);
    assert_eq!(count(&Policy::EveryNthLinear { n: 2 }), layers);
    assert_eq!(count(&Policy::BlockSkip { every: 2 }), layers + 2);
}

#[test]
fn full_and_attn_only_differ_in_attention_alone() {
    for subject in Subject::all() {
        let (mut full, mut attn_only) = (usage(&subject, &FULL), usage(&subject, &ATTN_ONLY));
        assert_eq!(backwards(&full), backwards(&attn_only), "{}", subject.name);
        let (of_full, of_attn_only) = (full.remove("attention"), attn_only.remove("attention"));
        assert_eq!(
            of_full.expect("there is attention").forwards,
            2 * of_attn_only.expect("there is attention").forwards,
            "{}",
            subject.name
        );
        assert_eq!(forwards(&full), forwards(&attn_only), "{}", subject.name);
    }
}

#[test]
fn every_nth_linear_computes_the_others_twice() {
    let subject = Subject::dit();
    let count = |policy: &Policy| usage(&subject, policy)["linear"].forwards;
    let none = count(&Policy::None);
    // Modulation, query, key, value, projection, and two of the feed-forward part.
    let per_block = 7;
    let layers = LAYERS as u64;
    assert_eq!(count(&FULL), none + per_block * layers);
    assert_eq!(count(&Policy::EveryNthLinear { n: 1 }), none);
    assert_eq!(count(&Policy::EveryNthLinear { n: 2 }), none + 3 * layers);
    assert_eq!(count(&Policy::EveryNthLinear { n: 3 }), none + 4 * layers);
}

#[test]
fn named_results_are_computed_once_and_everything_else_twice() {
    let subject = Subject::dit();
    let save = |pattern: &str| Policy::Regions {
        save: vec![pattern.into()],
    };
    let none = usage(&subject, &Policy::None);
    let mlp = usage(&subject, &save("mlp:linear"));
    let layers = LAYERS as u64;
    assert_eq!(mlp["attention"].forwards, 2 * layers);
    assert_eq!(mlp["linear"].forwards, none["linear"].forwards + 5 * layers);
    let only_one = usage(&subject, &save("transformer_blocks.2.attention:attention"));
    assert_eq!(only_one["attention"].forwards, 2 * layers - 1);
    // A region whose outputs are kept runs again for its own backward, so the counts are those of `full`.
    let region = usage(&subject, &save("attention"));
    assert_eq!(forwards(&region), forwards(&usage(&subject, &FULL)));
}

/// Where kernels fuse the last product of a block with gate and residual. A mixture of experts ends with another operation.
#[test]
fn no_replay_runs_the_operation_that_made_what_left_its_block() {
    let layers = LAYERS as u64;
    let streams = 2 * layers;
    for subject in Subject::all().into_iter().chain([Subject::flux()]) {
        // The last block of these leaves the text as it is.
        let (blocks, endings) = match subject.name.split(',').next().expect("a name") {
            "dit" | "wan" => (layers, layers),
            "mmdit" | "qwen-image" => (layers, streams - 1),
            "flux" => (2 * layers, streams + layers),
            _ => (layers, 0),
        };
        let plan = plan_of(CpuKernels::default());
        for (plan, expected) in [(fused(&plan), endings), (plan, 0)] {
            let engine = engine(&FULL, &*subject.model);
            subject.pass(&with_engine(&plan, &engine), 1);
            let counts = engine.counts();
            assert_eq!(counts.replayed, blocks, "{}", subject.name);
            let routed = match subject.name.starts_with("experts") {
                true => layers,
                false => 0,
            };
            assert_eq!(counts.restored, expected + routed, "{}", subject.name);
        }
    }
}

/// `(linear layers, attention)` of one pass, forward and backward, in floating-point operations.
fn flops(subject: &Subject, policy: &Policy) -> (f64, f64) {
    let usage = usage(subject, policy);
    let total = |name| {
        let usage: &Usage = &usage[name];
        (usage.forward_flops + usage.backward_flops) as f64
    };
    (total("linear"), total("attention"))
}

/// What a pass multiplies within its blocks, by the closed form: three products per linear layer, or two where the
/// weights are frozen, one more where it is computed again; 3.5 times attention's forward, or 4.5.
///
/// Source: the formulas for a DiT block, forward `24 S d²` of linear layers (four times the width in the feed-forward
/// part), `12 d²` of the modulation per sample, and `4 S² d` of attention.
#[test]
fn floating_point_operations_are_those_of_the_closed_form() {
    let (side, width, layers, rows) = (8, 24, 3, 2);
    let config = DitConfig {
        latent: flow_core::LatentShape {
            channels: 1,
            frames: 1,
            height: side,
            width: side,
        },
        patch: 1,
        hidden: width,
        layers,
        heads: 3,
        mlp_ratio: 4.0,
        moe: None,
        vocabulary: None,
        qk_norm: false,
        position: Position::Sincos,
    };
    let dit = Dit::new(&config, &ComputeDevice::cpu()).expect("it fits");
    let subject = Subject::new("dit", Box::new(dit), Trained::Full, rows);
    let (tokens, d) = ((side * side) as f64, width as f64);
    let per_sample = (rows * layers) as f64;
    let linear = per_sample * (24.0 * tokens * d * d + 12.0 * d * d);
    let attention = per_sample * 4.0 * tokens * tokens * d;
    // Outside of the blocks: embeddings of patches and noise level, and the last layers. No policy touches them.
    let (all, of_attention) = flops(&subject, &Policy::None);
    let outside = all - 3.0 * linear;
    assert_eq!(of_attention, 3.5 * attention);
    // Two layers of the time embedding, of which the first reads no gradient; patches as well as the last layer
    // and its modulation.
    let rows = rows as f64;
    let time = rows * (2.0 * 256.0 * d * 2.0 + 2.0 * d * d * 3.0);
    let ends = rows * tokens * 2.0 * d * (3.0 + 3.0) + rows * 2.0 * d * 2.0 * d * 3.0;
    assert_eq!(outside, time + ends, "outside of the blocks");
    for (policy, linears, attentions) in [
        (FULL, 4.0, 4.5),
        (ATTN_ONLY, 4.0, 3.5),
        (Policy::EveryNthLinear { n: 1 }, 3.0, 3.5),
        (Policy::Full { split: true }, 4.0, 4.5),
    ] {
        let found = flops(&subject, &policy);
        let expected = (linears * linear + outside, attentions * attention);
        assert_eq!(found, expected, "{policy}");
    }
}

/// Floating-point operations of the blocks of one forward of Wan: linear layers, attention to itself and to the text.
///
/// Source: per block `12 S d² + 4 S d f + 4 T d²` of linear layers for `S` tokens, `T` of the text and an inner width of
/// `f`; `4 S² d` and `4 S T d` of attention.
fn wan_forward(rows: usize) -> (f64, f64) {
    let (s, t, d, f) = (12.0, 5.0, 24.0, 40.0);
    let blocks = (rows * LAYERS) as f64;
    let linear = 12.0 * s * d * d + 4.0 * s * d * f + 4.0 * t * d * d;
    (blocks * linear, blocks * (4.0 * s * s * d + 4.0 * s * t * d))
}

/// The same of an MMDiT of which the first two of three blocks have a second attention of the image to itself.
///
/// Source: per block `24 (S + T) d²` of linear layers for `S` tokens of the image and `T` of the text, and `4 (S + T)² d` of
/// attention; a second attention adds `8 S d²` and `4 S² d`; the last block has `18 T d²` less. Modulations are layers of
/// the conditioning: six, or nine with a second attention, for the image; six, or two in the last block, for the text.
fn mmdit_forward(rows: usize) -> (f64, f64) {
    let (s, t, d) = (6.0, 5.0, 24.0);
    let block = 24.0 * (s + t) * d * d;
    let joint = 4.0 * (s + t) * (s + t) * d;
    let modulation = 2.0 * d * d * ((9.0 + 6.0) * 2.0 + 6.0 + 2.0);
    let linear = 3.0 * block + 2.0 * 8.0 * s * d * d - 18.0 * t * d * d + modulation;
    let attention = 3.0 * joint + 2.0 * 4.0 * s * s * d;
    (rows as f64 * linear, rows as f64 * attention)
}

#[test]
fn what_is_computed_again_of_two_streams_and_of_video_is_the_closed_form_of_a_forward() {
    for (name, forward) in [
        ("wan", wan_forward as fn(usize) -> (f64, f64)),
        ("mmdit", mmdit_forward),
    ] {
        let subject = Subject::all().into_iter().find(|subject| subject.name == name);
        let subject = subject.expect("it is among them");
        let (linear, attention) = forward(subject.rows);
        let none = flops(&subject, &Policy::None);
        assert_eq!(none.1, 3.5 * attention, "{name}");
        let again = |policy: &Policy| {
            let found = flops(&subject, policy);
            (found.0 - none.0, found.1 - none.1)
        };
        assert_eq!(again(&FULL), (linear, attention), "{name}");
        assert_eq!(again(&ATTN_ONLY), (linear, 0.0), "{name}");
        assert_eq!(again(&Policy::EveryNthLinear { n: 1 }), (0.0, 0.0), "{name}");
        assert_eq!(
            again(&Policy::Full { split: true }),
            (linear, attention),
            "{name}"
        );
    }
}

/// Forward and backward of linear layers of `input` by `output` weights on `positions` rows, trained in full or by adapters
/// of `rank` alone: the adapter's two products, and each of them twice again for the gradients of its factors, and once
/// for that of the input, as the processor's kernels compute them.
fn layer(positions: f64, [input, output]: [f64; 2], reads_tracked: bool, rank: f64) -> [f64; 2] {
    let (base, adapter) = (
        2.0 * positions * input * output,
        2.0 * positions * (input + output) * rank,
    );
    let reads_tracked = f64::from(u8::from(reads_tracked));
    [base + adapter, (base + adapter) * reads_tracked + 2.0 * adapter]
}

#[test]
fn frozen_weights_need_two_products_and_three_where_they_are_computed_again() {
    let (side, width, layers, rows, rank) = (8, 24, 3, 2, 3.0);
    let config = DitConfig {
        latent: flow_core::LatentShape {
            channels: 1,
            frames: 1,
            height: side,
            width: side,
        },
        patch: 1,
        hidden: width,
        layers,
        heads: 3,
        mlp_ratio: 4.0,
        moe: None,
        vocabulary: None,
        qk_norm: false,
        position: Position::Sincos,
    };
    let dit = Dit::new(&config, &ComputeDevice::cpu()).expect("it fits");
    let subject = Subject::new("dit, lora", Box::new(dit), Trained::Lora, rows);
    let (d, samples) = (width as f64, rows as f64);
    let tokens = samples * (side * side) as f64;
    let sum = |layers: &[[f64; 2]]| {
        layers
            .iter()
            .fold([0.0; 2], |sum, one| [sum[0] + one[0], sum[1] + one[1]])
    };
    let square = layer(tokens, [d, d], true, rank);
    let block = sum(&[
        layer(samples, [d, 6.0 * d], true, rank),
        square,
        square,
        square,
        square,
        layer(tokens, [d, 4.0 * d], true, rank),
        layer(tokens, [4.0 * d, d], true, rank),
    ]);
    let outside = sum(&[
        layer(samples, [256.0, d], false, rank),
        layer(samples, [d, d], true, rank),
        // Patches have a kernel in the place of a matrix, and no adapter.
        layer(tokens, [1.0, d], true, 0.0),
        layer(samples, [d, 2.0 * d], true, rank),
        layer(tokens, [d, 1.0], true, rank),
    ]);
    let blocks = layers as f64;
    let attention = blocks * 4.0 * tokens * (side * side) as f64 * d;
    for (policy, again, attentions) in [(Policy::None, 0.0, 3.5), (FULL, 1.0, 4.5), (ATTN_ONLY, 1.0, 3.5)] {
        let linear = blocks * (block[0] * (1.0 + again) + block[1]) + outside[0] + outside[1];
        assert_eq!(
            flops(&subject, &policy),
            (linear, attentions * attention),
            "{policy}"
        );
    }
}
