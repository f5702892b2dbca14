//! `exact_reuse` in whole runs: every number of a run without it, and fewer rows computed.

use crate::acceleration::records;
use crate::support::{Place, contains};
use serde_json::Value;

/// The records of a run, less what accelerators counted.
fn numbers(place: &Place) -> Vec<Value> {
    let kinds = ["train", "eval"];
    let all = kinds.iter().flat_map(|kind| records(place, kind));
    all.map(|mut record| {
        let object = record.as_object_mut().expect("a record is an object");
        object.retain(|key, _| !key.starts_with("acceleration/"));
        record
    })
    .collect()
}

#[test]
fn a_run_with_it_is_the_run_without_it_whatever_the_algorithm_guidance_and_precision() {
    let dtypes: &[&str] = match flow_kernels::CpuKernels::bf16() {
        Ok(_) => &["device.dtype=f32", "device.dtype=bf16"],
        Err(why) => {
            test_support::skipped(why);
            &["device.dtype=f32"]
        }
    };
    let algorithms: [&[&str]; 4] = [
        &[
            "algorithm.kind=grpo",
            "scheduler.window={ kind = \"list\", steps = [1, 2] }",
        ],
        &["algorithm.kind=grpo-guard", "sampling.guidance_scale=2.5"],
        &[
            "algorithm.kind=grpo",
            "algorithm.kl={ kind = \"mean\", beta = 0.1 }",
        ],
        &[
            "algorithm.kind=nft",
            "algorithm.kl_beta=0.01",
            "scheduler.dynamics=cps",
        ],
    ];
    for dtype in dtypes {
        for algorithm in algorithms {
            let run = |reuse: bool| {
                let place = Place::new();
                let mut arguments = vec!["train", "tiny.toml"];
                let settings = algorithm
                    .iter()
                    .chain([dtype, &"sampling.initial_noise=per_group"]);
                arguments.extend(settings.flat_map(|setting| ["--set", *setting]));
                let entry = "acceleration={ strict = true, shared = [{ name = \"exact_reuse\" }] }";
                if reuse {
                    arguments.extend(["--set", entry]);
                }
                place.succeed(&arguments);
                place
            };
            let (plain, reused) = (run(false), run(true));
            assert_eq!(numbers(&plain), numbers(&reused), "{dtype}, {algorithm:?}");
            for record in records(&reused, "train") {
                // Groups of 4 in micro-batches of 6: rows of one prompt in each call.
                for what in ["parts_reused", "forwards_shared", "kept_mib_peak"] {
                    let count = record[format!("acceleration/exact_reuse/{what}")].as_f64();
                    assert!(count > Some(0.0), "{what}: {record}");
                }
                let share = |step: u32| {
                    record[format!("acceleration/exact_reuse/forwards_shared/share/step_{step:03}")].as_f64()
                };
                assert!(share(0) > Some(0.0), "{record}");
                assert!(share(3).is_none(), "members have parted: {record}");
            }
        }
    }
}

/// A run with these settings, with and without the accelerator: the same numbers, and so many calls saved in each iteration, in rows.
fn saves(settings: &[&str], saved: f64) {
    let run = |reuse: bool| {
        let place = Place::new();
        let mut arguments = vec!["train", "tiny.toml", "--set", "sampling.initial_noise=per_group"];
        arguments.extend(settings.iter().flat_map(|setting| ["--set", *setting]));
        if reuse {
            let entry = "acceleration={ strict = true, shared = [{ name = \"exact_reuse\" }] }";
            arguments.extend(["--set", entry]);
        }
        place.succeed(&arguments);
        place
    };
    let (plain, reused) = (run(false), run(true));
    assert_eq!(numbers(&plain), numbers(&reused), "{settings:?}");
    for record in records(&reused, "train") {
        let count = record["acceleration/exact_reuse/forwards_shared"].as_f64();
        assert_eq!(count, Some(saved), "{settings:?}: {record}");
        assert_eq!(
            record["on_policy/max_ratio_deviation"].as_f64(),
            Some(0.0),
            "{record}"
        );
    }
}

#[test]
fn images_that_part_at_one_step_share_every_call_up_to_it() {
    let settings = [
        "sampling.group_size=6",
        "sampling.micro_batch=3",
        "sampling.branching={ kind = \"one-step\" }",
        "scheduler.window={ kind = \"list\", steps = [0, 2] }",
    ];
    // Three images part behind call 0, three behind call 2: of 1 and of 3 calls two rows each, in three groups.
    saves(&settings, 24.0);
}

#[test]
fn leaves_of_a_tree_share_every_call_up_to_where_they_part() {
    let settings = [
        "sampling.micro_batch=4",
        "sampling.branching={ kind = \"tree\", splits = [0, 2] }",
    ];
    // One, two, two and four rows are computed of four, in three groups.
    saves(&settings, 21.0);
}

#[test]
fn groups_that_start_from_one_latent_need_a_random_step() {
    let place = Place::new();
    let arguments = [
        "check",
        "tiny.toml",
        "--set",
        "algorithm.kind=nft",
        "--set",
        "scheduler.dynamics=ode",
        "--set",
        "sampling.initial_noise=per_group",
    ];
    contains(
        &place.fail(2, &arguments),
        &["rule::initial-noise", "every image of a group", "flow-sde"],
    );
}
