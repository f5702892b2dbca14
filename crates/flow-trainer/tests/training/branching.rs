//! Members of a group that part at chosen steps: one trajectory before, two behind.

use crate::losses::SITE;
use crate::support::{Visit, config, environment, registries, with_parts};
use flow_core::{InferencePass, RawTensor, cpu};
use flow_trainer::algorithm::Algorithm;
use flow_trainer::rollout::{NoiseSource, SampleRequest};
use flow_trainer::scheduler::StepCoefficients;
use flow_trainer::trainer::Parts;

/// The bits of each of four rows.
fn rows(values: &RawTensor) -> Vec<Vec<u32>> {
    let values = cpu::to_host(values);
    let rows = values.chunks(values.len() / 4);
    rows.map(|row| row.iter().map(|value| value.to_bits()).collect())
        .collect()
}

/// For each row the first that has the same bits.
fn first_alike(values: &RawTensor) -> Vec<usize> {
    let rows = rows(values);
    let first = |row: &Vec<u32>| rows.iter().position(|other| other == row);
    rows.iter()
        .map(|row| first(row).expect("a row is like itself"))
        .collect()
}

struct CheckTree;

impl Visit for CheckTree {
    type Output = ();

    fn visit<A: Algorithm + 'static>(self, parts: Parts<A>) {
        let parts = parts.set_up().expect("no accelerator refuses");
        let weights = parts.state.weights.current.clone();
        let rollout = InferencePass::new(&weights, parts.training_plan().clone());
        let prompt = parts.prompts[0].clone();
        let steps = parts.schedule.steps_for(0);
        // Steps 0, 1 and 2 are random; the second and third have the noise of two nodes, the last that of four.
        let ids: [&[u64]; 3] = [&[10, 10, 12, 12], &[10, 10, 12, 12], &[10, 11, 12, 13]];
        let run = |samples: [u64; 4], ids: &[Vec<u64>]| {
            let request = SampleRequest {
                site: SITE,
                source: NoiseSource::Rollout,
                samples: &samples,
                starts: &[10; 4],
                conditions: parts.conditioner.conditions(std::iter::repeat_n(&prompt, 4)),
                steps: &steps,
            };
            let keeps = |step: &StepCoefficients| step.log_prob.is_some();
            parts
                .sampler
                .run_recording(&rollout, request, (ids, keeps), |_| {})
        };
        let ids: Vec<Vec<u64>> = ids.iter().map(|ids| ids.to_vec()).collect();
        let samples = [10, 11, 12, 13];
        let tree = run(samples, &ids);
        let expected = [[0, 0, 0, 0], [0, 0, 2, 2], [0, 0, 2, 2]];
        for (record, expected) in tree.records.iter().zip(expected) {
            assert_eq!(
                first_alike(&record.x),
                expected,
                "before step {}",
                record.step.step
            );
            assert_eq!(first_alike(&record.mean), expected, "step {}", record.step.step);
        }
        assert_eq!(first_alike(&tree.records[2].x_next), [0, 1, 2, 3]);
        assert_eq!(first_alike(&tree.clean), [0, 1, 2, 3]);
        // Whoever is the first of its nodes all the way has the trajectory that it has by itself.
        let alone = run(samples, &[]);
        assert_eq!(rows(&tree.clean)[0], rows(&alone.clean)[0]);
        assert_eq!(first_alike(&alone.records[1].x), [0, 1, 2, 3]);
    }
}

#[test]
fn leaves_of_a_tree_have_the_bits_of_their_node_until_it_splits() {
    let registries = registries();
    with_parts(&config(&[]), &environment(&registries), CheckTree);
}
