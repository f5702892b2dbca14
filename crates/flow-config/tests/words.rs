//! What messages say of values as people write them: the value as it stands in the text, and a help that helps.

use flow_config::codes::{REMOVED_KEY, SYNTAX, WRONG_TYPE};
use flow_config::{Diagnostic, Report};
use test_catalog::{inspect_named, parse_named};

/// What is wrong with a file, or with overrides of an empty one.
fn report(text: &str, overrides: &[&str]) -> Report {
    let text = format!("config_version = 1\n{text}");
    let overrides: Vec<String> = overrides.iter().map(|one| (*one).to_owned()).collect();
    inspect_named("a.toml", &text, &overrides).report
}

/// The one thing that is wrong.
fn only(report: &Report) -> &Diagnostic {
    assert_eq!(report.diagnostics.len(), 1, "{report}");
    &report.diagnostics[0]
}

fn help(report: &Report) -> &str {
    only(report).help.as_deref().unwrap_or_default()
}

#[test]
fn numbers_of_other_languages_are_shown_as_toml_writes_them() {
    for (written, toml) in [("3.e-4", "3.0e-4"), (".5", "0.5"), ("1.", "1.0")] {
        let in_file = report(&format!("[optimizer]\nlearning_rate = {written}\n"), &[]);
        assert_eq!(only(&in_file).code, SYNTAX, "{in_file}");
        assert!(
            only(&in_file).message.contains(&format!("`{written}`")),
            "{in_file}"
        );
        assert_eq!(help(&in_file), format!("TOML writes this number {toml}"));
        let over = report("", &[&format!("optimizer.learning_rate={written}")]);
        assert_eq!(only(&over).code, WRONG_TYPE, "{over}");
        assert_eq!(
            help(&over),
            format!("TOML writes this number --set 'optimizer.learning_rate={toml}'")
        );
        // What is advised is taken.
        let advised = format!("optimizer.learning_rate={toml}");
        assert!(
            report("", &[&advised])
                .diagnostics
                .iter()
                .all(|one| one.code != WRONG_TYPE)
        );
    }
}

#[test]
fn words_that_are_no_values_are_named() {
    for (line, said, advice) in [
        ("[ema]\nenabled = no", "`no` is no value", "TOML writes false"),
        ("[ema]\nenabled = True", "`True` is no value", "TOML writes true"),
        (
            "[model]\nweights = None",
            "`None` is no value",
            "leave the key out",
        ),
        (
            "[run]\nname = digits # mine",
            "`digits` is no value",
            "\"digits\"",
        ),
        ("[run]\ndir = ../runs", "`../runs` is no value", "\"../runs\""),
    ] {
        let found = report(line, &[]);
        let first = &found.diagnostics[0];
        assert!(first.message.contains(said), "{found}");
        assert!(
            first.help.as_deref().is_some_and(|help| help.contains(advice)),
            "{found}"
        );
    }
}

#[test]
fn a_value_is_shown_as_it_was_written_and_not_as_it_was_read() {
    for (value, shown) in [
        ("1e5", "1e5"),
        ("nan", "nan"),
        ("0x10", "0x10"),
        ("1_000", "1_000"),
    ] {
        let over = report("", &[&format!("run.name={value}")]);
        assert!(only(&over).message.contains(&format!("`{shown}`")), "{over}");
        assert_eq!(
            help(&over),
            format!("write it in quotes: --set 'run.name=\"{shown}\"'")
        );
        let in_file = report(&format!("[run]\nname = {value}\n"), &[]);
        assert_eq!(help(&in_file), format!("write it in quotes: \"{shown}\""));
        let advised = format!("run.name=\"{shown}\"");
        assert!(parse_named("a.toml", "config_version = 1\n", &[advised]).is_ok());
    }
    let range = report("", &["run.steps=0x0"]);
    assert!(only(&range).message.contains("is 0x0, but"), "{range}");
}

#[test]
fn a_number_with_zeros_before_it_is_shown_as_toml_writes_it_and_nothing_else_is_said() {
    let found = report("[run]\nsteps = 060\n", &[]);
    assert_eq!(only(&found).code, SYNTAX, "{found}");
    assert!(only(&found).message.contains("`060`"), "{found}");
    assert_eq!(help(&found), "TOML writes this number 60");
}

#[test]
fn texts_whose_quotes_a_shell_took_away_are_shown_with_them() {
    for (over, advised) in [
        ("lora.targets=[to_q, to_k]", "lora.targets=[\"to_q\", \"to_k\"]"),
        ("lora.targets=[*.attn.to_q]", "lora.targets=[\"*.attn.to_q\"]"),
        (
            "scheduler.window={kind=random, count=2}",
            "scheduler.window={kind=\"random\", count=2}",
        ),
        (
            "ema.schedule={ kind = constant, decay = 0.5 }",
            "ema.schedule={ kind = \"constant\", decay = 0.5 }",
        ),
    ] {
        let found = report("", &[over]);
        assert!(help(&found).ends_with(&format!("--set '{advised}'")), "{found}");
        // What is advised is taken.
        let taken = report("", &[advised]);
        assert!(
            taken
                .diagnostics
                .iter()
                .all(|one| one.code != "bad-override" && one.code != SYNTAX),
            "{taken}"
        );
    }
    let found = report("", &["lora.targets=[to_q"]);
    assert!(
        help(&found).starts_with("write it as"),
        "no advice that would fail: {found}"
    );
}

#[test]
fn an_override_without_a_value_says_so() {
    let found = report("", &["run.name="]);
    assert!(only(&found).message.contains("gives no value"), "{found}");
    assert!(help(&found).contains("run.name=''"), "{found}");
    let empty = report("", &["run.name=''"]);
    assert!(
        empty.diagnostics.iter().all(|one| one.code != "bad-override"),
        "{empty}"
    );
}

#[test]
fn blanks_around_an_override_mean_nothing() {
    let blanks = ["run.steps= 2 ".to_owned(), "ema.enabled = true".to_owned()];
    let config = parse_named("a.toml", "config_version = 1\n", &blanks)
        .expect("valid")
        .config;
    assert_eq!((config.run.steps, config.ema.enabled), (2, true));
    for (word, advice) in [
        ("yes", "write --set 'ema.enabled=true'"),
        ("off", "write --set 'ema.enabled=false'"),
    ] {
        assert_eq!(help(&report("", &[&format!("ema.enabled={word}")])), advice);
    }
}

#[test]
fn keys_of_services_and_of_attention_say_what_there_is_instead() {
    for text in [
        "[logging]\nwandb = true",
        "[logging]\nreport_to = \"swanlab\"",
        "[wandb]\nproject = \"a\"",
    ] {
        let found = report(text, &[]);
        assert_eq!(only(&found).code, REMOVED_KEY, "{found}");
        assert!(help(&found).contains("TensorBoard"), "{found}");
        assert!(
            !found.to_string().contains("any more"),
            "it never was here: {found}"
        );
    }
    for (backend, pasted) in [
        ("flash", false),
        ("_flash_3_hub", false),
        ("sage", false),
        ("wgmma", true),
        ("reference", true),
    ] {
        let found = report(&format!("[model]\nattn_backend = \"{backend}\""), &[]);
        let block = format!("params = {{ backend = \"{backend}\" }}");
        assert_eq!(help(&found).contains(&block), pasted, "{found}");
        assert!(help(&found).starts_with("remove it"), "{found}");
    }
}

#[test]
fn what_a_terminal_would_obey_is_shown_and_not_obeyed() {
    for text in [
        "[run]\nname = \"a\u{1b}[31mred\" \n steps = 0",
        "[run]\n\"st\u{1b}]0;title\u{7}eps\" = 3",
        "# \u{202e}reversed\n[run]\nsteps = \u{9b}31m",
        "[device]\ndtype = \"b\\u001b[2Jf16\"",
    ] {
        let found = report(text, &[]);
        assert!(found.has_errors(), "{text:?}");
        let shown = found.render()
            + &found
                .diagnostics
                .iter()
                .map(ToString::to_string)
                .collect::<String>();
        let obeyed = |c: char| c.is_control() && c != '\n' || c == '\u{202e}';
        assert!(!shown.contains(obeyed), "{shown:?}");
    }
    let over = report("", &["run.name=a\u{1b}[31mb/c"]);
    assert!(!over.render().contains('\u{1b}'), "{over:?}");
}

#[test]
fn of_many_errors_the_first_are_shown_and_the_others_counted() {
    let lines: String = (0..500).map(|number| format!("zigzag_{number} = 1\n")).collect();
    let found = report(&format!("[run]\n{lines}"), &[]);
    assert_eq!(found.diagnostics.len(), 500);
    let shown = found.render();
    assert!(
        shown.contains("and 475 more") && shown.contains("--format json"),
        "{shown}"
    );
    assert!(shown.ends_with("500 errors\n"), "{shown}");
    assert!(shown.lines().count() < 200, "{}", shown.lines().count());
}

#[test]
fn values_and_names_are_found_as_keys_are() {
    let grpo = test_catalog::find_value("grpo");
    assert!(
        grpo.iter()
            .any(|(key, docs)| key == "algorithm.kind" && !docs.is_empty()),
        "{grpo:?}"
    );
    assert!(test_catalog::find_value("no-such-value").is_empty());
    let names = test_catalog::names();
    let nearest = |written: &str| flow_config::nearest(written, names.iter().map(String::as_str));
    assert_eq!(nearest("learning_rat"), Some("learning_rate"));
    assert_eq!(nearest("gropo"), Some("grpo"));
}
