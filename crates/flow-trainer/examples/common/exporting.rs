//! Writes a workload for a peer: weights, inputs and, of a small one, results.

use super::arrays::Arrays;
use super::workload_options::Options;
use super::workloads::Workload;
use super::{CLIP_RANGE, Failure, Job, LEARNING_RATE, Origin, RECORDED, TIMED_LEARNING_RATE, made, outline};
use flow_core::cpu;
use flow_core::rng::Purpose;
use flow_trainer::optimizer::MomentStorage;
use serde_json::json;
use std::collections::BTreeMap;
use std::path::Path;

/// Writes `workload` to `folder`.
///
/// # Errors
/// A file that cannot be written.
pub fn export(workload: &Workload, folder: &Path, options: &Options) -> Result<(), Failure> {
    std::fs::create_dir_all(folder)?;
    let file = folder.join("weights.safetensors");
    // What is written of a job with made weights is the same whatever its number of blocks, but for the names of the weights.
    let is_outline = options.made && !options.tiny;
    let blocks = is_outline.then_some(1);
    let from = if options.made { Origin::Made } else { Origin::Drawn };
    let mut job = Job::new(workload.clone().with_layers(blocks), from, options)?;
    if !options.made {
        flow_models::save(&job.weights, &file, options.store, &BTreeMap::new())?;
    }
    std::fs::write(folder.join("workload.json"), described(workload, &job, options)?)?;
    given(&job, options)?.write(&folder.join("given.safetensors"))?;
    if !options.tiny {
        return Ok(());
    }
    wanted(&mut job)?.write(&folder.join("wanted.safetensors"))
}

/// What the workload is, as JSON.
fn described(workload: &Workload, job: &Job, options: &Options) -> Result<String, Failure> {
    let Workload {
        name,
        architecture,
        settings,
        batch,
        lora,
        guidance_scale,
        ..
    } = workload;
    let mut described = json!({
        "workload": name, "architecture": architecture, "settings": settings, "batch": batch,
        "lora": lora.map(|lora| json!({ "rank": lora.rank, "alpha": lora.alpha })),
        "guidance_scale": guidance_scale, "steps": job.steps.len(), "recorded": RECORDED,
        "clip_range": CLIP_RANGE, "learning_rate": LEARNING_RATE,
        "timed_learning_rate": TIMED_LEARNING_RATE,
    });
    if options.made {
        let (_, layout, _) = outline::of(workload, &job.device)?;
        let names: Vec<&str> = layout.specs().iter().map(|spec| spec.name.as_str()).collect();
        described["weights"] = json!(names);
    }
    Ok(serde_json::to_string_pretty(&described)?)
}

/// Inputs, noise and coefficients of steps, and a recorded step.
fn given(job: &Job, options: &Options) -> Result<Arrays, Failure> {
    let (batch, values) = (job.samples.len(), job.values());
    let sampler = job.sampler();
    let mut given = Arrays::default();
    if options.made {
        let table = made::table();
        given.floats("weights.table", &[table.len()], &table);
    }
    given.floats("x", &[batch, values], &job.inputs.x);
    given.floats("sigma", &[batch], &job.inputs.sigma);
    given.floats("target", &[batch, values], &job.inputs.target);
    given.floats("advantages", &[batch], &job.inputs.advantages);
    for (name, (shape, values)) in &job.inputs.text {
        given.floats(name, shape, values);
    }
    for (name, classes) in [
        ("tokens", &job.inputs.classes),
        ("null_tokens", &job.inputs.null_classes),
    ] {
        let rows: Vec<Vec<u32>> = classes.iter().map(|class| vec![*class as u32]).collect();
        if !rows.is_empty() {
            given.tokens(name, &rows);
        }
    }
    let initial = sampler.noise(Purpose::InitialNoise, &job.samples, 0, values);
    given.plain("initial_noise", &initial);
    for (index, step) in job.steps.iter().enumerate() {
        let noise = sampler.noise(Purpose::SdeNoise, &job.samples, index as u32 + 1, values);
        given.plain(&format!("noise.{index}"), &noise);
        let (scale, offset) =
            (step.log_prob.as_ref()).map_or((0.0, 0.0), |log_prob| (log_prob.scale, log_prob.offset));
        let row = [step.sigma, step.mean_x, step.mean_v, step.noise, scale, offset].map(|value| value as f32);
        given.floats(&format!("step.{index}"), &[6], &row);
    }
    if job.steps[RECORDED].is_stochastic() {
        let record = &job.recorded(&sampler)?.records[0];
        given.plain("record.x_next", &record.x_next);
        given.plain("record.log_prob", &record.log_prob);
    }
    Ok(given)
}

/// Results: of a forward pass, of a rollout, of a loss and of a step with it.
fn wanted(job: &mut Job) -> Result<Arrays, Failure> {
    let mut wanted = Arrays::default();
    wanted.plain("velocity", &job.forward(job.input()));
    wanted.plain("clean", &job.roll_out(&job.sampler()).clean);
    let (loss, gradients) = job.loss(&job.learnt()?);
    wanted.floats("loss", &[1], &cpu::to_host(&loss));
    for (spec, gradient) in job.weights.layout().specs().iter().zip(&gradients) {
        if let Some(gradient) = gradient {
            wanted.plain(&format!("gradient.{}", spec.name), gradient);
        }
    }
    let mut optimizer = job.optimizer(MomentStorage::F32, LEARNING_RATE);
    job.update(&mut optimizer, gradients)?;
    for (index, trained) in job.trained.iter().enumerate() {
        if *trained {
            let name = &job.weights.layout().specs()[index].name;
            let [value] = job
                .weights
                .values(&[index], &*job.plan.kernels)
                .try_into()
                .expect("one value");
            wanted.plain(&format!("stepped.{name}"), &value);
        }
    }
    Ok(wanted)
}
