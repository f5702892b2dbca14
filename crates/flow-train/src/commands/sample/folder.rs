//! `sample DIR`: images as the pipeline of a diffusers folder makes them, by its own scheduler and with its own defaults.

use crate::arguments::SampleArguments;
use crate::commands::prompts;
use crate::failure::{Failure, OrFailure};
use crate::terminal;
use flow_config::Config;
use flow_core::Condition;
use flow_core::rng::{Purpose, Stream};
use flow_core::tensors::plain;
use flow_pipeline::{EncodedPrompt, Generation, Guidance, Pipeline, conditions, generate};
use flow_trainer::decoder::Decoded;
use flow_trainer::setup::{self, Environment};

/// Pixels, of all frames, that are made at once; one sample at least.
const PIXELS: usize = 1 << 20;

/// The guidance of what is made.
struct Scales {
    /// The scale that the model embeds, if it does, in both branches.
    embedded: Option<f32>,
    /// The scale of classifier-free guidance; 1 for no second branch.
    guidance: f64,
}

impl Scales {
    /// What the arguments say, and where they are silent the pipeline.
    fn of(arguments: &SampleArguments, pipeline: &Pipeline) -> Result<Self, Failure> {
        let scale = arguments.guidance.unwrap_or(pipeline.defaults().guidance_scale);
        match (pipeline.embeds_guidance(), arguments.true_cfg) {
            (true, true_cfg) => Ok(Self {
                embedded: Some(scale as f32),
                guidance: true_cfg.unwrap_or(1.0),
            }),
            (false, None) => Ok(Self {
                embedded: None,
                guidance: scale,
            }),
            (false, Some(true_cfg)) => Err(Failure::Input(format!(
                "`--true-cfg {true_cfg}`: the model of `{}` embeds no guidance scale, and `--guidance` is classifier-free guidance of its \
                 own; pass `--guidance {true_cfg}`",
                pipeline.folder().folder().display()
            ))),
        }
    }
}

/// `count` images for each prompt, prompt by prompt. Image `i` starts from the noise of `seed` at address `i`. What of the arguments
/// changes nothing is said, unless `quiet`.
pub fn make(
    config: &Config,
    environment: &Environment<'_>,
    arguments: &SampleArguments,
    seed: u64,
    quiet: bool,
) -> Result<Vec<Decoded>, Failure> {
    let pipeline = setup::pipeline(config, environment.base, &environment.folders).or_bad_input()?;
    let steps = arguments.steps.map_or(pipeline.defaults().steps, usize::from);
    let Scales {
        embedded,
        guidance: scale,
    } = Scales::of(arguments, &pipeline)?;
    // The encoders first: they are dropped before the transformer is loaded.
    let texts: Vec<&str> = arguments.prompt.iter().map(String::as_str).collect();
    let negative = arguments.negative_prompt.as_deref();
    if !quiet && negative.is_some() && scale == 1.0 {
        terminal::note(match embedded {
            Some(_) => {
                "note: the negative prompt is not read: this model embeds the guidance scale, and has a second branch only with `--true-cfg`"
            }
            None => {
                "note: the negative prompt is not read: the guidance scale is 1, and there is no second branch"
            }
        });
    }
    let (encoded, negative) = prompts::encode(config, environment, &pipeline, &texts, negative, quiet)?;
    let model = setup::model(config, environment).or_bad_input()?;
    let spec = model.model.spec();
    let decoder = setup::decoder(config, environment, spec).or_bad_input()?;
    let device = &environment.device;
    let (latent, pixels) = (spec.latent, decoder.shape());
    let count = usize::from(arguments.count);
    let wanted: Vec<&EncodedPrompt> = encoded
        .iter()
        .flat_map(|prompt| std::iter::repeat_n(prompt, count))
        .collect();
    let at_once = (PIXELS / (decoder.frames() * pixels.height * pixels.width)).max(1);
    let mut all = Vec::with_capacity(wanted.len());
    for (part, prompts) in wanted.chunks(at_once).enumerate() {
        let condition = |prompts: &[&EncodedPrompt]| -> Condition { conditions(prompts, embedded, device) };
        let guidance = (scale != 1.0).then(|| Guidance {
            unconditional: condition(&vec![&negative; prompts.len()]),
            scale,
        });
        let generation = Generation {
            model: &*model.model,
            weights: &model.weights,
            plan: &environment.plan,
            condition: condition(prompts),
            guidance,
            steps,
        };
        let mut noise = vec![0.0; prompts.len() * latent.values()];
        for (row, noise) in noise.chunks_mut(latent.values()).enumerate() {
            let address = (part * at_once + row) as u64;
            Stream::new(seed, Purpose::Evaluation)
                .at(address, 0)
                .fill_normal(noise);
        }
        let start = device.tensor(noise, [prompts.len(), latent.values()]);
        let made = generate(&pipeline, &generation, start, |_, _| ()).or_bad_input()?;
        all.extend(decoder.decode_finite(&plain(&made.into_dispatch())).or_failed()?);
    }
    Ok(all)
}
