//! Models that read encoded text are trained like those that read tokens, whatever encodes the prompts.

use crate::support::{BASE, DIT, MMDIT, RunTo, environment, registries, with_trainer};
use burn::tensor::Tensor;
use flow_config::Config;
use flow_core::model::TextWidth;
use flow_core::{Condition, LatentShape, device::ComputeDevice};
use flow_data::{Dataset, Digits};
use flow_models::StoredDtype;
use flow_trainer::conditions::Conditioner;
use flow_trainer::setup;
use flow_trainer::text::EncodedText;
use safetensors::tensor::{Dtype, TensorView};
use std::collections::HashMap;
use std::path::{Path, PathBuf};

const WAN: &str = r#"[model]
architecture = "wan"
[model.wan]
latent_frames = 1
latent_height = 8
latent_width = 8
in_channels = 1
num_layers = 2
attention_head_dim = 12
num_attention_heads = 2
ffn_dim = 40
text_dim = 12
freq_dim = 16
"#;

fn config(model: &str, overrides: &[String]) -> Config {
    assert!(BASE.contains(DIT), "the base config has changed");
    test_catalog::parse_named("test.toml", &BASE.replace(DIT, model), overrides)
        .unwrap_or_else(|report| panic!("{report}"))
        .config
}

const WIDTH: TextWidth = TextWidth {
    channels: 12,
    pooled: Some(10),
};

fn words(tokens: usize, seed: u64) -> Result<Conditioner, String> {
    let (digits, device) = (Digits::new().expect("the digits"), ComputeDevice::cpu());
    let text = EncodedText::words(&digits, WIDTH, tokens, seed, &device)?;
    Ok(Conditioner::encoded(text, true, &device))
}

fn host<const D: usize>(tensor: &Tensor<D>) -> Vec<f32> {
    tensor.to_data().try_to_vec().expect("f32")
}

fn text_of(condition: &Condition) -> (Vec<f32>, Vec<f32>) {
    let text = condition.text.as_ref().expect("encoded text");
    (
        host(text),
        condition.pooled.as_ref().map(host).unwrap_or_default(),
    )
}

#[test]
fn a_run_on_encoded_text_ends_with_ratios_of_one_and_the_same_bits_twice() {
    let registries = registries();
    let root = tempfile::tempdir().expect("a temporary directory");
    for (name, model) in [("mmdit", MMDIT), ("wan", WAN)] {
        let guided = config(model, &["sampling.guidance_scale=2.5".into()]);
        let run = |name: String| {
            let root = root.path().join(name);
            let run = RunTo {
                root: &root,
                resume: false,
                until: 2,
            };
            with_trainer(&guided, &environment(&registries), run).unwrap_or_else(|error| panic!("{error}"))
        };
        let (one, two) = (run(format!("{name}-1")), run(format!("{name}-2")));
        assert_eq!(one, two);
        let deviation = "\"on_policy/max_ratio_deviation\":0.0";
        assert_eq!(one.metrics.matches(deviation).count(), 2, "{}", one.metrics);
    }
}

#[test]
fn a_word_has_the_same_vector_in_every_prompt_and_padding_is_zero() {
    let conditioner = words(5, 0).expect("2 tokens fit into 5");
    let digits = Digits::new().expect("the digits");
    let prompts: Vec<_> = ["thin 3", "bold 3", "thin 3"]
        .map(|text| digits.parse_prompt(text).expect("a prompt"))
        .into();
    let conditions = conditioner.conditions(prompts.iter());
    let (text, pooled) = text_of(&conditions.conditional);
    assert_eq!((text.len(), pooled.len()), (3 * 5 * 12, 3 * 10));
    let token = |prompt: usize, at: usize| &text[(prompt * 5 + at) * 12..][..12];
    assert_eq!(token(0, 1), token(1, 1), "`3` and `3`");
    assert_ne!(token(0, 0), token(1, 0), "`thin` and `bold`");
    assert!((2..5).all(|at| token(1, at).iter().all(|value| *value == 0.0)));
    assert_eq!(text[..60], text[120..], "the same prompt");
    assert_eq!(pooled[..10], pooled[20..]);
    assert_ne!(pooled[..10], pooled[10..20]);
    let (empty, _) = text_of(conditions.unconditional.as_ref().expect("guided"));
    assert_eq!(empty[..60], empty[60..120]);
    assert_ne!(empty[..60], text[..60]);
    let (rows, _) = text_of(&conditioner.rows(&[None, Some(&prompts[1])]));
    assert_eq!(rows, [&empty[..60], &text[60..120]].concat());
}

#[test]
fn vectors_of_words_have_unit_variance_and_follow_the_seed() {
    let digits = Digits::new().expect("the digits");
    let values = |seed| {
        text_of(
            &words(2, seed)
                .expect("it fits")
                .conditions(digits.prompts().iter())
                .conditional,
        )
    };
    let (one, again, other) = (values(1), values(1), values(2));
    assert_eq!(one, again);
    assert_ne!(one, other);
    let squares: f64 = one.0.iter().map(|value| f64::from(*value).powi(2)).sum();
    let mean_square = squares / one.0.len() as f64;
    assert!((0.7..1.3).contains(&mean_square), "{mean_square}");
}

#[test]
fn prompts_longer_than_the_text_are_refused() {
    let problem = words(1, 0).expect_err("2 tokens do not fit into 1");
    assert!(problem.contains("set `text.tokens = 2` or more"), "{problem}");
}

/// Numbers that tell every element of a file from every other.
fn counted(count: usize, first: f32) -> Vec<f32> {
    (0..count).map(|at| first + at as f32 / 64.0).collect()
}

/// A file of encoded digits with 3 tokens, after `change`.
fn file(
    folder: &Path,
    metadata: Option<HashMap<String, String>>,
    change: impl FnOnce(&mut Vec<(&'static str, Vec<usize>, Vec<f32>)>),
) -> PathBuf {
    let mut tensors = vec![
        ("prompt_embeds", vec![30, 3, 12], counted(30 * 36, 1.0)),
        ("negative_prompt_embeds", vec![1, 3, 12], counted(36, -1.0)),
        ("pooled_prompt_embeds", vec![30, 10], counted(300, 40.0)),
        ("negative_pooled_prompt_embeds", vec![1, 10], counted(10, -40.0)),
    ];
    change(&mut tensors);
    let bytes: Vec<(&str, Vec<usize>, Vec<u8>)> = (tensors.iter())
        .map(|(name, shape, values)| {
            (
                *name,
                shape.clone(),
                values.iter().flat_map(|value| value.to_le_bytes()).collect(),
            )
        })
        .collect();
    let views = bytes.iter().map(|(name, shape, bytes)| {
        let view =
            TensorView::new(Dtype::F32, shape.clone(), bytes).expect("as many values as the shape has");
        (*name, view)
    });
    let path = folder.join("prompts.safetensors");
    let written = safetensors::serialize(views, metadata).expect("it can be written");
    std::fs::write(&path, written).expect("it can be written");
    path
}

fn read(path: &Path) -> Result<Conditioner, String> {
    let (digits, device) = (Digits::new().expect("the digits"), ComputeDevice::cpu());
    let text = EncodedText::file(&digits, WIDTH, path, &device)?;
    assert_eq!(text.tokens(), 3);
    Ok(Conditioner::encoded(text, true, &device))
}

#[test]
fn prompts_of_a_file_are_taken_by_their_ids() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let digits = Digits::new().expect("the digits");
    let texts: Vec<&str> = digits
        .prompts()
        .iter()
        .map(|prompt| prompt.text.as_str())
        .collect();
    let noted = serde_json::to_string(&texts).expect("a list of texts");
    let path = file(
        folder.path(),
        Some([("prompts".to_owned(), noted)].into()),
        |_| (),
    );
    let conditioner = read(&path).unwrap_or_else(|problem| panic!("{problem}"));
    let prompts = [&digits.prompts()[29], &digits.prompts()[4]];
    let conditions = conditioner.conditions(prompts.into_iter());
    let (text, pooled) = text_of(&conditions.conditional);
    let all = counted(30 * 36, 1.0);
    assert_eq!(text, [&all[29 * 36..], &all[4 * 36..5 * 36]].concat());
    let all = counted(300, 40.0);
    assert_eq!(pooled, [&all[290..], &all[40..50]].concat());
    let (text, pooled) = text_of(conditions.unconditional.as_ref().expect("guided"));
    assert_eq!(text, counted(36, -1.0).repeat(2));
    assert_eq!(pooled, counted(10, -40.0).repeat(2));
}

#[test]
fn masks_of_a_file_are_the_lengths_of_its_texts() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let digits = Digits::new().expect("the digits");
    let prompts = || [&digits.prompts()[29], &digits.prompts()[4]].into_iter();
    // Prompt n has n mod 3 tokens and one more.
    let mask = |rows: usize| -> Vec<f32> {
        let row = |row: usize| {
            [
                1.0,
                f32::from(u8::from(!row.is_multiple_of(3))),
                f32::from(u8::from(row % 3 > 1)),
            ]
        };
        (0..rows).flat_map(row).collect()
    };
    let whole = read(&file(folder.path(), None, |_| ())).expect("no masks");
    assert!(whole.conditions(prompts()).conditional.text_lengths.is_none());

    let path = file(folder.path(), None, |tensors| {
        tensors.push(("prompt_embeds_mask", vec![30, 3], mask(30)));
    });
    let conditions = read(&path).expect("one mask").conditions(prompts());
    let lengths = |condition: &Condition| condition.text_lengths.as_deref().map(<[usize]>::to_vec);
    assert_eq!(lengths(&conditions.conditional), Some(vec![3, 2]));
    let negative = conditions.unconditional.as_ref().expect("guided");
    assert_eq!(
        lengths(negative),
        Some(vec![3, 3]),
        "without a mask it is all text"
    );

    let path = file(folder.path(), None, |tensors| {
        tensors.push(("prompt_embeds_mask", vec![30, 3], mask(30)));
        tensors.push(("negative_prompt_embeds_mask", vec![1, 3], mask(1)));
    });
    let conditions = read(&path).expect("both masks").conditions(prompts());
    let both = conditions
        .conditional
        .stacked(conditions.unconditional.expect("guided"));
    assert_eq!(lengths(&both), Some(vec![3, 2, 1, 1]));

    let path = file(folder.path(), None, |tensors| {
        let mut holed = mask(30);
        holed[3 * 7] = 0.0;
        tensors.push(("prompt_embeds_mask", vec![30, 3], holed));
        tensors.push(("negative_prompt_embeds_mask", vec![1, 2], vec![1.0; 2]));
    });
    let problem = read(&path).expect_err("two things are wrong");
    for said in [
        "row 7 of `prompt_embeds_mask` shows a token behind padding",
        "`negative_prompt_embeds_mask` is [1, 2], and its texts need [1, 3]",
    ] {
        assert!(problem.contains(said), "`{said}` is not in: {problem}");
    }
}

#[test]
fn everything_that_is_wrong_with_a_file_is_said_at_once() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let path = file(folder.path(), None, |tensors| {
        tensors[0].1 = vec![15, 6, 12];
        tensors[1].2[7] = f32::NAN;
        tensors.remove(2);
    });
    let problem = read(&path).expect_err("three things are wrong");
    for said in [
        "prompts.safetensors",
        "`prompt_embeds` is [15, 6, 12], and the model and the data set need [30, any, 12]",
        "value 7 of `negative_prompt_embeds` is not finite",
        "it has no tensor `pooled_prompt_embeds`",
        "flow-train list prompts",
    ] {
        assert!(problem.contains(said), "`{said}` is not in: {problem}");
    }
    let noted = |texts: &[&str]| {
        let text = serde_json::to_string(texts).expect("a list of texts");
        let metadata = Some([("prompts".to_owned(), text)].into());
        read(&file(folder.path(), metadata, |_| ())).expect_err("another data set's prompts")
    };
    let digits = Digits::new().expect("the digits");
    let mut texts: Vec<&str> = digits.prompts().iter().map(|it| it.text.as_str()).collect();
    texts[1] = "a cat";
    let problem = noted(&texts);
    assert!(
        problem.contains("its prompt 1 is `a cat`, that of `digits`"),
        "{problem}"
    );
    // As many as there are, or they are of something else: none, some, and one too many.
    texts[1] = &digits.prompts()[1].text;
    texts.push("bold 7");
    for wrong in [&texts[..0], &texts[..5], &texts[..]] {
        let problem = noted(wrong);
        assert!(
            problem.contains(&format!("lists {} texts, and `digits` has 30", wrong.len())),
            "{problem}"
        );
    }
    std::fs::write(&path, b"no safetensors").expect("it can be written");
    assert!(read(&path).is_err());
    let missing = read(&folder.path().join("none.safetensors")).expect_err("there is no file");
    assert!(missing.contains("none.safetensors"), "{missing}");
}

#[test]
fn a_config_names_its_file_of_encoded_prompts_from_its_own_folder() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    file(folder.path(), None, |_| ());
    let registries = registries();
    let mut environment = environment(&registries);
    environment.base = folder.path();
    let config = config(
        MMDIT,
        &["text={ kind = \"file\", path = \"prompts.safetensors\" }".into()],
    );
    let common = setup::common(&config, &environment).unwrap_or_else(|error| panic!("{error}"));
    let rows = common.conditioner.rows(&[None]);
    assert_eq!(rows.text.expect("encoded text").dims(), [1, 3, 12]);
}

#[test]
fn a_model_with_weights_from_a_file_draws_its_adapters_and_nothing_else() {
    let folder = tempfile::tempdir().expect("a temporary directory");
    let registries = registries();
    let mut environment = environment(&registries);
    environment.base = folder.path();
    let drawn = |overrides: &[String]| {
        let lora = [
            "model.finetune=\"lora\"".to_owned(),
            "lora.targets=[\"to_q\"]".to_owned(),
        ];
        let config = config(MMDIT, &[&lora[..], overrides].concat());
        setup::model(&config, &environment).unwrap_or_else(|error| panic!("{error}"))
    };
    let fresh = drawn(&[]);
    let full = setup::model(&config(MMDIT, &["run.seed=77".into()]), &environment).expect("a model");
    let path = folder.path().join("base.safetensors");
    flow_models::save(&full.weights, &path, StoredDtype::F32, &Default::default())
        .expect("it can be written");
    let loaded = drawn(&["model.weights=\"base.safetensors\"".into()]);
    for (index, spec) in loaded.weights.layout().specs().iter().enumerate() {
        let of = match full.weights.layout().position(&spec.name) {
            Ok(position) => full.weights.host(position),
            Err(_) => fresh.weights.host(index),
        };
        assert_eq!(loaded.weights.host(index), of, "{}", spec.name);
    }
}

#[test]
fn what_a_model_reads_is_in_its_spec() {
    let registries = registries();
    let environment = environment(&registries);
    let spec = |model: &str| {
        setup::model(&config(model, &[]), &environment)
            .expect("a model")
            .model
            .spec()
            .clone()
    };
    let (mmdit, wan) = (spec(MMDIT), spec(WAN));
    assert_eq!((mmdit.text, mmdit.vocabulary), (Some(WIDTH), None));
    assert_eq!(
        wan.text,
        Some(TextWidth {
            pooled: None,
            ..WIDTH
        })
    );
    let latent = LatentShape {
        channels: 1,
        frames: 1,
        height: 8,
        width: 8,
    };
    assert_eq!((mmdit.latent, wan.latent), (latent, latent));
}
