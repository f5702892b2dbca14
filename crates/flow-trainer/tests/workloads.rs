//! The operations that workloads are said to take, against numbers that others published.

#[path = "../examples/common/flops.rs"]
mod flops;
#[allow(dead_code, reason = "the example reads more of them")]
#[path = "../examples/common/workloads.rs"]
mod workloads;

use flops::{Forward, of_last_products, tera, text_tokens};
use flow_core::device::ComputeDevice;
use flow_models::ModelRegistry;
use flow_validate::Operations;
use workloads::{NAMES, workload};

fn forward(name: &str) -> f64 {
    let Forward { linear, attention } = Forward::of(&workload(name, false).expect("a workload"));
    (linear + attention) / 1e9
}

fn close(found: f64, wanted: f64) {
    assert!((found / wanted - 1.0).abs() < 0.002, "{found}, not {wanted}");
}

#[test]
fn a_forward_pass_of_dit_xl_2_takes_what_its_authors_say() {
    // Peebles and Xie 2022, table 4: 118.6 and 524.6 "Gflops", which are multiplications with their additions.
    close(forward("dit-xl-256"), 2.0 * 118.64);
    close(forward("dit-xl-1024"), 2.0 * 524.6);
}

#[test]
fn a_training_step_is_three_and_a_half_times_attention_and_three_times_the_rest() {
    let xl = workload("dit-xl-256", false).expect("a workload");
    let Forward { linear, attention } = Forward::of(&xl);
    let once = 64.0 / 1e12;
    close(tera(&xl, "step", "none"), once * (3.0 * linear + 3.5 * attention));
    close(tera(&xl, "step", "full"), once * (4.0 * linear + 4.5 * attention));
    close(
        tera(&xl, "step", "attn_only"),
        once * (4.0 * linear + 3.5 * attention),
    );
    close(tera(&xl, "forward", "none"), once * (linear + attention));
}

#[test]
fn guidance_doubles_a_batch_and_adapters_spare_the_gradients_of_what_is_frozen() {
    let sd35 = workload("sd35-medium", false).expect("a workload");
    let Forward { linear, attention } = Forward::of(&sd35);
    let once = 2.0 * 8.0 / 1e12;
    close(tera(&sd35, "rollout", "none"), 8.0 * once * (linear + attention));
    close(
        tera(&sd35, "step", "none"),
        once * (2.0 * linear + 3.5 * attention),
    );
}

#[test]
fn adapters_spare_the_products_that_blocks_end_with() {
    let flux = workload("flux-512", false).expect("a workload");
    let Forward { linear, attention } = Forward::of(&flux);
    // 1,024 tokens and 512 of text: 19 blocks from 12,288 channels to 3,072, and 38 from 15,360.
    let last = 2.0 * 1_536.0 * 3_072.0 * (19.0 * 12_288.0 + 38.0 * 15_360.0);
    close(of_last_products(&flux), last);
    close(
        tera(&flux, "step", "attn_only"),
        4.0 / 1e12 * (3.0 * linear - last + 3.5 * attention),
    );
    for name in NAMES {
        let workload = workload(name, false).expect("a workload");
        let share = of_last_products(&workload) / Forward::of(&workload).linear;
        assert!((0.2..0.4).contains(&share), "{name}: {share}");
    }
}

#[test]
fn long_videos_are_mostly_attention() {
    let Forward { linear, attention } = Forward::of(&workload("wan-1.3b", false).expect("a workload"));
    let share = attention / (linear + attention);
    assert!((0.69..0.71).contains(&share), "{share}");
    // 31,200 tokens in 30 blocks of 12 heads of 128, to themselves and to 512 tokens of text.
    close(attention, 30.0 * 4.0 * 31_200.0 * 31_712.0 * 1536.0);
}

#[test]
fn what_a_models_own_layout_says_it_computes_is_what_the_formulas_say() {
    let mut models = ModelRegistry::new();
    flow_models::register(&mut models).expect("a new registry");
    for name in NAMES {
        let workload = workload(name, false).expect("a workload");
        let model = models.build(workload.architecture, &workload.settings, &ComputeDevice::cpu());
        let model = model.expect("a model");
        let trained = vec![true; model.layout().len()];
        let found = Operations::of(model.layout(), model.spec(), &trained, text_tokens(&workload));
        let Forward { linear, attention } = Forward::of(&workload);
        // The formulas leave embeddings and the output out, and count a modulation of six widths for a sample.
        assert!(
            (found.trained / linear - 1.0).abs() < 0.02,
            "{name}: {} and {linear}",
            found.trained
        );
        assert_eq!(found.attention, attention, "{name}");
    }
}
