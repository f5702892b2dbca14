//! Scores against transformers, open_clip and PyTorch: small random networks in f32.

use crate::common::{Recorded, copy_clip_to, fixture};
use flow_rewards::{Lent, Reward, RewardError, RewardRegistry, RewardSample, score_videos};
use flow_rewards_models::{
    Aesthetic, AestheticSettings, ClipDiversity, ClipDiversitySettings, ClipScore, ClipScoreFormula,
    ClipScorePreprocessing, ClipScoreSettings, Computation, HpsV2, HpsV2Settings, PickScore,
    PickScoreSettings,
};

fn clip_score(change: impl FnOnce(&mut ClipScoreSettings)) -> ClipScore {
    let mut settings = ClipScoreSettings::new(fixture("clip"));
    change(&mut settings);
    ClipScore::new(&settings, &Computation::processor()).unwrap()
}

fn bits(reward: &dyn Reward, samples: &[RewardSample<'_>]) -> Vec<u32> {
    let scores = reward.score(samples).unwrap().into_iter();
    scores.map(f32::to_bits).collect()
}

#[test]
fn clip_score_is_flow_factorys_cosine_or_flow_grpos_logits() {
    let recorded = Recorded::read();
    recorded.scores_are(&clip_score(|_| {}), "cosine");
    let flow_grpo = clip_score(|settings| {
        settings.score = ClipScoreFormula::Logits;
        settings.preprocessing = ClipScorePreprocessing::TensorBilinear;
    });
    recorded.scores_are(&flow_grpo, "flow_grpo");
    let (low, high) = flow_grpo.range();
    assert!(low == -high && (high - 100.0 / 30.0).abs() < 1e-3, "{high}");
}

#[test]
fn pickscore_is_that_of_flow_grpo() {
    let settings = PickScoreSettings::new(fixture("clip"));
    let reward = PickScore::new(&settings, &Computation::processor()).unwrap();
    Recorded::read().scores_are(&reward, "pickscore");
}

#[test]
fn the_aesthetic_score_is_that_of_the_five_layers_of_a_pickle_or_of_safetensors() {
    let recorded = Recorded::read();
    for head in ["aesthetic.pth", "aesthetic.safetensors"] {
        let settings = AestheticSettings::new(fixture("clip"), fixture(head));
        let reward = Aesthetic::new(&settings, &Computation::processor()).unwrap();
        recorded.scores_are(&reward, "aesthetic");
    }
}

#[test]
fn hpsv2_is_that_of_open_clips_file_and_of_a_folder_of_transformers() {
    let recorded = Recorded::read();
    let settings = HpsV2Settings::new(fixture("hpsv2.pt"), fixture("clip"));
    let reward = HpsV2::new(&settings, &Computation::processor()).unwrap();
    recorded.scores_are(&reward, "hpsv2");
    let settings = HpsV2Settings {
        path: fixture("clip"),
        tokenizer: None,
        ..settings
    };
    let reward = HpsV2::new(&settings, &Computation::processor()).unwrap();
    recorded.scores_are(&reward, "hpsv2_of_transformers");
}

#[test]
fn the_diversity_of_an_image_is_0_beside_its_copy_and_whatever_the_batches_are() {
    let mut recorded = Recorded::read();
    recorded.images[2] = recorded.images[0].clone();
    let diversity = |batch_size: usize| {
        let settings = ClipDiversitySettings {
            batch_size,
            ..ClipDiversitySettings::new(fixture("clip"))
        };
        let reward = ClipDiversity::new(&settings, &Computation::processor()).unwrap();
        reward.score(&recorded.samples()).unwrap()
    };
    let scores = diversity(16);
    assert_eq!((scores[0], scores[2]), (0.0, 0.0));
    assert!(scores[1] > 0.0 && scores[1] <= 2.0, "{scores:?}");
    assert_eq!(diversity(1), scores);
}

#[test]
fn a_score_depends_on_its_sample_alone() {
    let recorded = Recorded::read();
    let samples = recorded.samples();
    let whole = bits(&clip_score(|_| {}), &samples);
    assert_eq!(
        bits(&clip_score(|settings| settings.batch_size = 4), &samples),
        whole
    );
    let reward = clip_score(|settings| settings.batch_size = 1);
    assert_eq!(bits(&reward, &samples), whole);
    let backwards: Vec<RewardSample<'_>> = samples.iter().rev().copied().collect();
    let reversed: Vec<u32> = whole.iter().rev().copied().collect();
    assert_eq!(bits(&clip_score(|_| {}), &backwards), reversed);
}

#[test]
fn a_video_has_the_mean_of_its_frames() {
    let recorded = Recorded::read();
    let reward = clip_score(|_| {});
    let frames = [
        recorded.images[0].clone(),
        recorded.images[0].clone(),
        recorded.images[2].clone(),
    ];
    let prompt = &recorded.prompts[0];
    let sample = |image, frames| RewardSample {
        image,
        frames,
        prompt,
    };
    let of_frames = reward
        .score(&frames.each_ref().map(|frame| sample(frame, &[][..])))
        .unwrap();
    let video = score_videos(&reward, &[sample(&frames[0], &frames[..])]).unwrap();
    let mean = of_frames.iter().sum::<f32>() / 3.0;
    assert!((video[0] - mean).abs() < 1e-6, "{} for {mean}", video[0]);
    assert_ne!(of_frames[0], of_frames[2]);
}

#[test]
fn an_image_that_is_not_finite_is_an_error_with_its_place() {
    let mut recorded = Recorded::read();
    recorded.images[3].pixels_chw[5] = f32::INFINITY;
    let reward = clip_score(|settings| settings.batch_size = 2);
    let error = reward.score(&recorded.samples()).unwrap_err();
    match error {
        RewardError::Sample { index: 3, problem } => assert!(problem.contains("inf"), "{problem}"),
        other => panic!("{other}"),
    }
}

#[test]
fn a_config_finds_the_rewards_by_name_and_the_device_of_a_run_is_lent() {
    let mut registry = RewardRegistry::with_built_in().unwrap();
    flow_rewards_models::register(&mut registry).unwrap();
    let recorded = Recorded::read();
    let folder = tempfile::tempdir().unwrap();
    let params = serde_json::json!({ "path": "clip", "device": "run" });
    let params = params.as_object().unwrap();
    let base = folder.path();
    std::fs::create_dir(base.join("clip")).unwrap();
    copy_clip_to(&base.join("clip"));
    let alone = registry.build("clip_score", params, base);
    crate::common::refused(alone, &["`device`", "lends none", "\"cpu\""]);
    let lent = Lent::default().with(Computation::processor());
    let reward = registry.build_with("clip_score", params, base, &lent).unwrap();
    recorded.scores_are(&*reward, "cosine");
    // Within another reward, too.
    let wrapped = serde_json::json!({ "reward": "clip-score", "params": params });
    let ranks = registry
        .build_with("rank-in-group", wrapped.as_object().unwrap(), base, &lent)
        .unwrap();
    assert_eq!(
        ranks.score(&recorded.samples()).unwrap().len(),
        recorded.images.len()
    );
}

#[test]
fn a_registry_says_from_headers_what_a_network_will_hold_in_memory() {
    let mut registry = RewardRegistry::with_built_in().unwrap();
    flow_rewards_models::register(&mut registry).unwrap();
    let base = fixture("");
    let memory = |kind: &str, params: serde_json::Value| {
        let params = params.as_object().unwrap();
        registry.memory(kind, params, &base)
    };
    // Counted in Python from the headers of the file: both sides, and the image side.
    let clip = memory("clip-score", serde_json::json!({ "path": "clip" })).unwrap();
    assert_eq!((clip.values, clip.is_on_run_device), (46_041, false));
    let aesthetic = serde_json::json!({ "path": "clip", "head": "aesthetic.pth", "device": "run" });
    let aesthetic = memory("aesthetic", aesthetic).unwrap();
    assert_eq!((aesthetic.values, aesthetic.is_on_run_device), (14_480, true));
    // A reward within another one is asked.
    let ranked = serde_json::json!({ "reward": "clip-score", "params": { "path": "clip" } });
    assert_eq!(memory("rank-in-group", ranked).unwrap(), clip);
    assert_eq!(
        memory("jpeg-compressibility", serde_json::json!({}))
            .unwrap()
            .values,
        0
    );
    let missing = memory("clip-score", serde_json::json!({ "path": "elsewhere" }));
    assert!(missing.unwrap_err().to_string().contains("elsewhere"));
}
