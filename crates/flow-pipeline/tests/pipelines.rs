//! Whole pipelines against diffusers 0.42.1: embeddings, noise levels, four guided steps, pictures.

mod common;

use burn::tensor::Tensor;
use common::*;
use flow_autoencoder::{Options, ScaledLatent};
use flow_core::LatentShape;
use flow_core::device::ComputeDevice;
use flow_core::exec::{CallContext, InferencePass, Stage};
use flow_diffusers::{FlowMatchEuler, Scheduler};
use flow_pipeline::{
    CutPrompt, EncodedPrompt, FileHashes, Generation, Guidance, Pipeline, PromptCache, PromptSettings, Size,
    conditions, generate, sigmas,
};

/// Bounds of the fixtures' README: of embeddings of T5, of latents after four steps, of pictures.
const OF_EMBEDS: f32 = 5e-5;
const OF_LATENTS: f32 = 1e-4;
const OF_PICTURES: f32 = 5e-4;

/// A recorded pipeline with its prompts encoded.
struct Case {
    /// Deleted with the case.
    _folder: tempfile::TempDir,
    recorded: Recorded,
    pipeline: Pipeline,
    prompts: Vec<EncodedPrompt>,
    negative: Vec<EncodedPrompt>,
    size: Size,
}

impl Case {
    fn of(name: &str, oracle: &str) -> Self {
        let recorded = Recorded::read(name, oracle);
        let folder = folder(name);
        let pipeline = Pipeline::open(folder.path(), None).unwrap();
        let length = recorded.settings["max_sequence_length"].as_u64();
        let settings = PromptSettings {
            text_tokens: length.map_or(pipeline.defaults().text_tokens, |length| length as usize),
            micro_batch: 1,
        };
        let encode = |key: &str| {
            let texts = recorded.texts(key);
            let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
            pipeline
                .encode_prompts(&texts, settings, &ComputeDevice::cpu(), &plan())
                .unwrap()
        };
        let size = Size {
            width: recorded.number("width") as usize,
            height: recorded.number("height") as usize,
            frames: recorded.settings["num_frames"].as_u64().unwrap_or(1) as usize,
        };
        Self {
            _folder: folder,
            prompts: encode("prompts"),
            negative: encode("negative_prompts"),
            recorded,
            pipeline,
            size,
        }
    }

    fn embeds_are_those_recorded(&self) {
        for (prompts, prefix) in [(&self.prompts, ""), (&self.negative, "negative_")] {
            let together = conditions(&prompts.iter().collect::<Vec<_>>(), None, &ComputeDevice::cpu());
            self.recorded.near(
                &host(&together.text.unwrap()),
                &format!("{prefix}prompt_embeds"),
                OF_EMBEDS,
            );
            let lengths = self.recorded.lengths.get(&format!("{prefix}prompt_embeds_mask"));
            assert_eq!(together.text_lengths.as_deref(), lengths.map(Vec::as_slice));
            let pooled: Vec<f32> = prompts
                .iter()
                .filter_map(|prompt| prompt.pooled.clone())
                .flatten()
                .collect();
            if !pooled.is_empty() {
                self.recorded
                    .near(&pooled, &format!("{prefix}pooled_prompt_embeds"), OF_EMBEDS);
            }
        }
    }

    /// Four steps from the recorded noise, called `start`, under two branches at `scale`; and the pictures.
    fn pictures_are_those_recorded(&self, start: &str, scale: f64, embedded: Option<f32>, packed: bool) {
        let (device, plan) = (ComputeDevice::cpu(), plan());
        let model = self.pipeline.transformer(self.size, &models(), &device).unwrap();
        let weights = self.pipeline.transformer_weights(&*model, &device).unwrap();
        let latent = self.pipeline.latent(self.size).unwrap();
        let of =
            |prompts: &[EncodedPrompt]| conditions(&prompts.iter().collect::<Vec<_>>(), embedded, &device);
        let generation = Generation {
            model: &*model,
            weights: &weights,
            plan: &plan,
            condition: of(&self.prompts),
            guidance: (scale != 1.0).then(|| Guidance {
                unconditional: of(&self.negative),
                scale,
            }),
            steps: 4,
        };
        let noise = self.recorded.floats[start].1.clone();
        let rows = self.prompts.len();
        let start: Tensor<2> = device.tensor(noise, [rows, latent.values()]);
        let made = generate(&self.pipeline, &generation, start, |step, x_bn| {
            let found = match packed {
                true => pack(&host(x_bn), [latent.channels, latent.height, latent.width]),
                false => host(x_bn),
            };
            self.recorded
                .near(&found, &format!("latents.{}", step + 1), OF_LATENTS);
        });
        let made = ScaledLatent::of_rows(made.unwrap(), latent).unwrap();
        let (autoencoder, weights) = self.pipeline.autoencoder(&device).unwrap();
        let pass = InferencePass::new(&weights, plan.clone());
        let exec = pass.exec(CallContext::single(Stage::Evaluation));
        let pictures = autoencoder
            .decode(&exec, autoencoder.scaling().unscale(made), &Options::default())
            .unwrap();
        // Recorded are frames before colours.
        let found = host(&pictures.unit().permute([0, 2, 1, 3, 4]));
        self.recorded.within(&found, "image", OF_PICTURES);
    }

    fn sigmas_are_those_recorded(&self) {
        let latent = self.pipeline.latent(self.size).unwrap();
        let tokens = latent.height * latent.width / 4;
        let found = sigmas(self.pipeline.family(), self.pipeline.scheduler(), 4, tokens).unwrap();
        let found: Vec<f32> = found.into_iter().map(|sigma| sigma as f32).collect();
        self.recorded.within(&found, "sigmas", 1e-6);
    }
}

#[test]
fn stable_diffusion_3_makes_the_pictures_of_diffusers() {
    let case = Case::of("sd3", "oracle");
    case.embeds_are_those_recorded();
    case.sigmas_are_those_recorded();
    case.pictures_are_those_recorded("latents.0", case.recorded.number("guidance_scale"), None, false);
}

#[test]
fn flux_dev_makes_the_pictures_of_diffusers_with_the_scale_it_embeds_and_a_second_branch() {
    let case = Case::of("flux-dev", "oracle");
    case.embeds_are_those_recorded();
    case.sigmas_are_those_recorded();
    assert!(case.pipeline.embeds_guidance());
    let embedded = case.recorded.number("guidance_scale") as f32;
    let scale = case.recorded.number("true_cfg_scale");
    case.pictures_are_those_recorded("latents.0_unpacked", scale, Some(embedded), true);
}

#[test]
fn wan_makes_the_videos_of_diffusers_with_its_own_solver() {
    let case = Case::of("wan", "oracle_unipc");
    case.embeds_are_those_recorded();
    case.sigmas_are_those_recorded();
    case.pictures_are_those_recorded("latents.0", case.recorded.number("guidance_scale"), None, false);
}

#[test]
fn qwen_image_makes_the_pictures_of_diffusers_from_texts_of_four_lengths() {
    let case = Case::of("qwen-image", "oracle");
    let lengths = |prompts: &[EncodedPrompt]| -> Vec<usize> { prompts.iter().map(|it| it.length).collect() };
    let all = [lengths(&case.prompts), lengths(&case.negative)].concat();
    assert_eq!(all, [17, 46, 13, 5]);
    case.embeds_are_those_recorded();
    case.sigmas_are_those_recorded();
    let scale = case.recorded.number("true_cfg_scale");
    case.pictures_are_those_recorded("latents.0_unpacked", scale, None, true);
}

#[test]
fn a_text_of_qwen_image_is_cut_where_it_is_told_and_nearly_the_same_beside_a_longer_one() {
    let folder = folder("qwen-image");
    let pipeline = Pipeline::open(folder.path(), None).unwrap();
    let encode = |text_tokens, micro_batch| {
        let settings = PromptSettings {
            text_tokens,
            micro_batch,
        };
        let texts = ["a cat", "", "ein Würfel aus Glas, von oben gesehen"];
        pipeline.encode_prompts(&texts, settings, &ComputeDevice::cpu(), &plan())
    };
    let (alone, together, cut) = (
        encode(512, 1).unwrap(),
        encode(512, 3).unwrap(),
        encode(6, 2).unwrap(),
    );
    let longest = alone.iter().map(|prompt| prompt.length).max().unwrap();
    for ((alone, together), cut) in alone.iter().zip(&together).zip(&cut) {
        assert_eq!((alone.length, alone.tokens), (together.length, together.tokens));
        assert_eq!(alone.text.len(), alone.length * pipeline.text_channels());
        let pairs = alone.text.iter().zip(&together.text);
        assert!(
            pairs.fold(0f32, |off, (a, b)| off.max((a - b).abs())) < 1e-5,
            "of {longest}"
        );
        assert_eq!(cut.length, alone.length.min(6));
        assert_eq!(
            cut.text.len(),
            cut.length * pipeline.text_channels(),
            "no padding is kept"
        );
    }
    let wrong = encode(1025, 1).unwrap_err().to_string();
    assert!(
        wrong.contains("`text_tokens` is 1025") && wrong.contains("between 1 and 1024"),
        "{wrong}"
    );
    assert!(encode(0, 1).is_err());
}

#[test]
fn prompts_that_no_encoder_reads_all_of_are_counted_with_the_tokens_that_they_lose() {
    let long = "a lighthouse at night, ".repeat(16);
    let prompts = ["a", long.as_str(), "a"];
    for name in ["sd3", "flux-dev", "wan", "qwen-image"] {
        let folder = folder(name);
        let lost = |text_tokens| {
            let settings = PromptSettings {
                text_tokens,
                micro_batch: 1,
            };
            let pipeline = Pipeline::open(folder.path(), None).unwrap();
            match pipeline.cut_prompts(&prompts, settings).unwrap()[..] {
                [] => 0,
                [CutPrompt { number: 1, tokens }] => tokens,
                ref other => panic!("{name}: {other:?}"),
            }
        };
        let whole = 20 + lost(20);
        assert!((80..=511).contains(&whole), "{name}: {whole}");
        assert_eq!(
            [whole + 1, whole, whole - 1, whole - 7].map(lost),
            [0, 0, 1, 7],
            "{name}"
        );
        if name != "sd3" {
            continue;
        }
        // Without T5 it is CLIP's 77 tokens, whatever is said of T5's.
        let index = folder.path().join("model_index.json");
        let mut said: serde_json::Value = serde_json::from_slice(&std::fs::read(&index).unwrap()).unwrap();
        for part in ["text_encoder_3", "tokenizer_3"] {
            said[part] = serde_json::json!([null, null]);
        }
        std::fs::write(&index, said.to_string()).unwrap();
        assert!(lost(20) > 0);
        assert_eq!(lost(20), lost(512));
    }
}

#[test]
fn noise_levels_of_qwen_image_are_those_of_diffusers_for_sizes_that_it_is_published_for() {
    let folder = folder("qwen-image");
    let pipeline = Pipeline::open(folder.path(), None).unwrap();
    // `set_timesteps(sigmas=linspace(1, 1/steps, steps), mu=…)` of diffusers 0.42.1, in f32.
    let of_a_megapixel = [1.0, 0.766_709_3, 0.455_613_74, 0.019_999_98, 0.0];
    let small = [
        1.0,
        0.926_790_5,
        0.847_327_8,
        0.760_775,
        0.666_138_9,
        0.562_231_3,
        0.447_619_86,
        0.320_560_8,
        0.178_909_78,
        0.019_999_98,
        0.0,
    ];
    for (tokens, wanted) in [(4096, &of_a_megapixel[..]), (256, &small[..])] {
        let found = sigmas(pipeline.family(), pipeline.scheduler(), wanted.len() - 1, tokens);
        let found = found.unwrap();
        assert_eq!(found.len(), wanted.len());
        for (found, wanted) in found.iter().zip(wanted) {
            assert!((found - wanted).abs() < 1e-6, "{tokens}: {found} {wanted}");
        }
    }
    let latent = pipeline.latent(Size::picture(1024, 1024)).unwrap();
    assert_eq!(
        [latent.channels, latent.frames, latent.height, latent.width],
        [16, 1, 128, 128]
    );
}

#[test]
fn a_dynamic_schedule_ends_at_its_terminal_level_and_a_static_one_is_shifted_twice_at_its_end() {
    let euler = |shift: f64| FlowMatchEuler {
        num_train_timesteps: 1000,
        shift,
        dynamic: None,
        shift_terminal: None,
    };
    let scheduler = Scheduler::FlowMatchEuler(euler(3.0));
    let of_sd3 = sigmas(flow_diffusers::Family::StableDiffusion3, &scheduler, 10, 1024).unwrap();
    // 3/1002 is the least level, which is shifted once more.
    let least = 3.0 / 1002.0;
    assert!((of_sd3[9] - 3.0 * least / (1.0 + 2.0 * least)).abs() < 1e-12);
    let terminal = Scheduler::FlowMatchEuler(FlowMatchEuler {
        shift_terminal: Some(0.02),
        ..euler(1.0)
    });
    let of_qwen = sigmas(flow_diffusers::Family::QwenImage, &terminal, 10, 1024).unwrap();
    assert!((of_qwen[9] - 0.02).abs() < 1e-12);
    assert!((of_qwen[0] - 1.0).abs() < 1e-12);
    assert_eq!(of_qwen[10], 0.0);
    let one = sigmas(flow_diffusers::Family::QwenImage, &terminal, 1, 1024).unwrap();
    assert_eq!(one, [1.0, 0.0]);
    let none = sigmas(flow_diffusers::Family::Flux, &terminal, 0, 1024)
        .unwrap_err()
        .to_string();
    assert!(
        none.contains("`steps` is 0; it must be between 1 and 1000"),
        "{none}"
    );
}

#[test]
fn a_size_that_a_pipeline_does_not_make_is_refused_with_the_nearest() {
    let sd3 = Pipeline::open(folder("sd3").path(), None).unwrap();
    let wrong = |size| sd3.latent(size).unwrap_err().to_string();
    let width = wrong(Size::picture(70, 64));
    assert!(
        width.contains("the width must be a multiple of 16 pixels; nearest: 64 or 80"),
        "{width}"
    );
    let frames = wrong(Size {
        width: 64,
        height: 64,
        frames: 5,
    });
    assert!(frames.contains("`frames` is 1, not 5"), "{frames}");
    let wan = Pipeline::open(folder("wan").path(), None).unwrap();
    let size = Size {
        width: 48,
        height: 32,
        frames: 7,
    };
    let frames = wan.latent(size).unwrap_err().to_string();
    assert!(frames.contains("nearest: 5 or 9"), "{frames}");
}

#[test]
fn the_cache_gives_the_same_values_and_makes_damaged_entries_again() {
    let source = folder("sd3");
    let pipeline = Pipeline::open(source.path(), None).unwrap();
    let cache = tempfile::tempdir().unwrap();
    let settings = PromptSettings {
        text_tokens: 16,
        micro_batch: 2,
    };
    let run = |prompts: &[&str], text_tokens| {
        let settings = PromptSettings {
            text_tokens,
            ..settings
        };
        let cache = PromptCache::new(cache.path());
        cache
            .encode(&pipeline, prompts, settings, &ComputeDevice::cpu(), &plan())
            .unwrap()
    };
    let (first, used) = run(&["a cat", "ein Würfel", "a cat"], 16);
    assert_eq!((used.found, used.encoded), (0, 2));
    let plainly = pipeline
        .encode_prompts(&["a cat", "ein Würfel"], settings, &ComputeDevice::cpu(), &plan())
        .unwrap();
    let cat = first.get("a cat").unwrap();
    assert_eq!(*cat, plainly[0]);
    assert_eq!(*first.get("ein Würfel").unwrap(), plainly[1]);
    let foreign = first.get("a dog").unwrap_err().to_string();
    assert_eq!(foreign, "the prompt \"a dog\" was not encoded");
    let (again, used) = run(&["ein Würfel", "a cat"], 16);
    assert_eq!((used.found, used.encoded), (2, 0));
    assert_eq!(*again.get("a cat").unwrap(), *cat);
    // Another length is another entry.
    assert_eq!(run(&["a cat"], 8).1.encoded, 1);
    // A bit that fell over is no value of a prompt.
    let (flipped, _) = run(&["a cat"], 16);
    for path in entries(cache.path()) {
        let mut bytes = std::fs::read(&path).unwrap();
        *bytes.last_mut().unwrap() ^= 1;
        std::fs::write(&path, bytes).unwrap();
    }
    let wrong = flipped.get("a cat").unwrap_err().to_string();
    assert!(
        wrong.contains("its values are not those that were written; remove it"),
        "{wrong}"
    );
    for path in entries(cache.path()) {
        std::fs::write(&path, b"cut off").unwrap();
    }
    let (mended, used) = run(&["a cat"], 16);
    assert_eq!((used.found, used.encoded, used.damaged.len()), (0, 1, 1));
    assert_eq!(*mended.get("a cat").unwrap(), *cat);
}

#[test]
fn a_file_that_is_hashed_for_one_cache_is_not_hashed_for_another() {
    let source = folder("sd3");
    let pipeline = Pipeline::open(source.path(), None).unwrap();
    let hashes = FileHashes::default();
    let of = |hashes: &FileHashes| {
        let nowhere = source.path().join("no cache");
        let cache = PromptCache::new(nowhere).with_hashes(hashes.clone());
        cache.fingerprint(&pipeline).unwrap()
    };
    let first = of(&hashes);
    // Another value, which neither size nor time shows: whoever reads the file sees it.
    let path = source.path().join("text_encoder/model.safetensors");
    let changed = std::fs::metadata(&path).unwrap().modified().unwrap();
    let mut bytes = std::fs::read(&path).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    std::fs::write(&path, bytes).unwrap();
    let file = std::fs::File::options().write(true).open(&path).unwrap();
    file.set_modified(changed).unwrap();
    assert_eq!(of(&hashes), first);
    assert_ne!(of(&FileHashes::default()), first);
}

/// The prompts' files of a cache.
fn entries(cache: &std::path::Path) -> Vec<std::path::PathBuf> {
    let all = std::fs::read_dir(cache)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    all.filter(|path| path.extension().is_some_and(|ending| ending == "safetensors"))
        .collect()
}

#[test]
fn the_size_of_what_is_decoded_is_by_the_factors_of_the_folders_autoencoder() {
    let latent = |frames: usize| LatentShape {
        channels: 16,
        frames,
        height: 8,
        width: 6,
    };
    for name in ["sd3", "flux-dev", "qwen-image", "wan"] {
        let place = folder(name);
        let pipeline = Pipeline::open(place.path(), None).unwrap();
        assert_eq!(pipeline.decoded_size(latent(1)), Size::picture(48, 64), "{name}");
        assert_eq!(pipeline.latent(Size::picture(48, 64)).unwrap(), latent(1));
    }
    let place = folder("wan");
    let pipeline = Pipeline::open(place.path(), None).unwrap();
    let video = pipeline.decoded_size(latent(3));
    assert_eq!((video.width, video.height, video.frames), (48, 64, 9));
    // One block less halves the side once less.
    let place = folder("sd3");
    let config = place.path().join("vae/config.json");
    let text = std::fs::read(&config).unwrap();
    let mut json: serde_json::Value = serde_json::from_slice(&text).unwrap();
    for key in ["block_out_channels", "down_block_types", "up_block_types"] {
        json[key].as_array_mut().unwrap().pop();
    }
    std::fs::write(&config, json.to_string()).unwrap();
    let pipeline = Pipeline::open(place.path(), None).unwrap();
    assert_eq!(pipeline.decoded_size(latent(1)), Size::picture(24, 32));
}
