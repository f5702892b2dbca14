//! Rewards of Flow-Factory: which are converted, with what, and what the verdict asks for.

use flow_config::Config;
use flow_import::{Imported, Outcome, Verdict, import};
use serde_json::json;
use test_catalog::{CATALOG, parse_named};

fn imported(rewards: &str) -> Imported {
    let yaml = format!(
        "model: {{model_type: sd3-5, model_name_or_path: /sd35}}\ndata: {{dataset_dir: /prompts}}\n\
         train: {{trainer_type: grpo, group_size: 8, max_epochs: 3}}\n{rewards}\n"
    );
    import(&yaml, &CATALOG).unwrap_or_else(|error| panic!("{error}\n{yaml}"))
}

fn config(imported: &Imported) -> Config {
    parse_named("config.toml", &imported.toml, &[])
        .unwrap_or_else(|report| panic!("{report}\n{}", imported.toml))
        .config
}

/// The tables of `[[rewards]]`.
fn tables(imported: &Imported) -> Vec<serde_json::Value> {
    let config = serde_json::to_value(config(imported)).expect("a config is JSON");
    config["rewards"].as_array().expect("a list").clone()
}

fn needs(imported: &Imported) -> Vec<String> {
    match &imported.verdict {
        Verdict::RunsWhen { needs } => needs.clone(),
        Verdict::Runs => Vec::new(),
        Verdict::Cannot { because } => panic!("{because:?}"),
    }
}

#[test]
fn flow_factorys_own_networks_are_the_same_rewards_here_and_wait_for_their_files() {
    for (reward, kind, path, need) in [
        (
            "PickScore",
            "pickscore",
            "PickScore_v1",
            "a copy of yuvalkirstain/PickScore_v1 (`flow-train fetch yuvalkirstain/PickScore_v1`)",
        ),
        (
            "flow_factory.rewards.clip.CLIPRewardModel",
            "clip-score",
            "clip-vit-large-patch14",
            "a copy of openai/clip-vit-large-patch14 (`flow-train fetch openai/clip-vit-large-patch14`)",
        ),
        (
            "ocr",
            "ocr",
            "ocr",
            "the files of PP-OCR in the folder `ocr` beside the TOML",
        ),
    ] {
        let imported = imported(&format!(
            "rewards: [{{name: mine, reward_model: {reward}, weight: 0.5, batch_size: 4, device: cuda, dtype: bfloat16}}]"
        ));
        let tables = tables(&imported);
        assert_eq!(tables.len(), 1, "{}", imported.toml);
        let table = &tables[0];
        assert_eq!(table["kind"], kind, "{}", imported.toml);
        assert_eq!(
            (&table["name"], &table["weight"]),
            (&json!("mine"), &json!(0.5)),
            "{}",
            imported.toml
        );
        assert!(
            imported.toml.contains(&format!("\npath = \"{path}\"\n")),
            "{}",
            imported.toml
        );
        assert_eq!(needs(&imported), [need]);
        // What Flow-Factory computes on the GPU is computed there.
        let on_device = imported.toml.contains("\ndevice = \"run\"\n");
        assert_eq!(on_device, kind != "ocr", "{}", imported.toml);
    }
}

#[test]
fn ranks_of_pickscore_are_ranks_of_the_reward_below() {
    let imported = imported(
        "rewards: {name: ranks, reward_model: PickScore_Rank, device: cpu}\n\
         eval_rewards: {name: score, reward_model: PickScore}",
    );
    let tables = tables(&imported);
    assert_eq!(tables[0]["kind"], "rank-in-group", "{}", imported.toml);
    assert_eq!(tables[0]["reward"], "pickscore", "{}", imported.toml);
    assert_eq!(tables[0]["params"]["path"], "PickScore_v1", "{}", imported.toml);
    assert!(tables[0]["params"]["device"].is_null(), "{}", imported.toml);
    assert!(
        imported
            .toml
            .contains("\n[[eval_rewards]]\nkind = \"pickscore\"\n"),
        "{}",
        imported.toml
    );
    assert_eq!(
        needs(&imported).len(),
        1,
        "one copy serves both: {}",
        imported.verdict
    );
}

#[test]
fn a_folder_of_ones_own_is_taken_as_it_is_and_a_server_is_asked_as_it_is() {
    let imported = imported(
        "rewards:\n\
         - {name: a, reward_model: CLIP, model_name_or_path: /models/clip}\n\
         - {name: b, reward_model: flow_factory.rewards.my_reward_remote.RemotePointwiseRewardModel, \
         server_url: 'http://localhost:8000', batch_size: 8, timeout: 30}\n\
         - {name: c, reward_model: flow_factory.rewards.my_reward_remote.RemoteGroupwiseRewardModel, \
         server_url: 'http://localhost:8001', retry_attempts: 5}",
    );
    assert_eq!(imported.verdict, Verdict::Runs, "{}", imported.toml);
    let tables = tables(&imported);
    assert_eq!(tables[0]["path"], "/models/clip");
    assert_eq!(tables[1]["servers"], json!(["http://localhost:8000"]));
    assert_eq!(
        (&tables[1]["batch"], &tables[1]["timeout_s"]),
        (&json!(8), &json!(30.0))
    );
    assert!(
        imported.toml.contains("\ngroupwise = true\n"),
        "{}",
        imported.toml
    );
    let retries = imported
        .notes
        .iter()
        .find(|note| note.from.ends_with("retry_attempts"));
    assert_eq!(
        retries.map(|note| note.outcome),
        Some(Outcome::Kept),
        "{}",
        imported.toml
    );
}

#[test]
fn a_video_is_scored_by_all_its_frames_and_the_notes_say_that_flow_factory_takes_the_first() {
    let yaml = "model: {model_type: wan2_t2v, model_name_or_path: /wan}\ndata: {dataset_dir: /prompts}\n\
                train: {trainer_type: grpo, group_size: 8}\nrewards: {name: a, reward_model: CLIP}\n";
    let imported = import(yaml, &CATALOG).expect("converts");
    assert!(
        imported
            .summary()
            .contains("in Flow-Factory that of its first frame"),
        "{}",
        imported.summary()
    );
}

#[test]
fn a_reward_that_cannot_be_converted_is_in_the_verdict_and_no_other_takes_its_place() {
    for rewards in [
        "rewards: {name: a, reward_model: my.own.Reward}",
        "rewards: {name: a, reward_model: my.pickscore.Variant}",
        "rewards: {name: a, reward_model: flow_factory.rewards.my_reward_remote.RemotePointwiseRewardModel}",
        "rewards: {name: a, reward_model: PickScore, weight: .inf}",
    ] {
        let imported = imported(rewards);
        assert!(!imported.toml.contains("[[rewards]]\nkind"), "{}", imported.toml);
        assert_eq!(
            needs(&imported)
                .iter()
                .filter(|need| need.contains("reward"))
                .count(),
            1,
            "{}",
            imported.verdict
        );
    }
}
