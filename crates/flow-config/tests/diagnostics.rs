//! What is said of a wrong config: place, code, help, nearest name, all at once.

#[path = "../../../fuzz/checks/config.rs"]
mod fuzz_config;

use flow_config::{Diagnostic, Report, Severity, codes};
use test_catalog::parse_named;

fn report(text: &str, overrides: &[&str]) -> Report {
    let overrides: Vec<String> = overrides.iter().map(|one| (*one).to_owned()).collect();
    match parse_named("a.toml", text, &overrides) {
        Ok(resolved) => resolved.report,
        Err(report) => report,
    }
}

/// The only diagnostic of a text that follows `config_version = 1` and a newline.
fn only(text: &str) -> (Diagnostic, String) {
    let text = format!("config_version = 1\n{text}\n");
    let report = report(&text, &[]);
    assert_eq!(report.diagnostics.len(), 1, "{report}");
    let diagnostic = report.diagnostics[0].clone();
    let spanned = diagnostic
        .span
        .clone()
        .map(|span| text[span].to_owned())
        .unwrap_or_default();
    (diagnostic, spanned)
}

#[test]
fn an_unknown_key_names_the_nearest_valid_one() {
    let (diagnostic, spanned) = only("[optimizer]\nlearning_rte = 1e-4");
    assert_eq!(
        (diagnostic.code, diagnostic.path.as_str()),
        (codes::UNKNOWN_KEY, "optimizer.learning_rte")
    );
    assert_eq!(
        (diagnostic.file.as_deref(), diagnostic.line, diagnostic.column),
        (Some("a.toml"), Some(3), Some(1))
    );
    assert_eq!(diagnostic.nearest.as_deref(), Some("learning_rate"));
    assert_eq!(spanned, "learning_rte");
    assert!(diagnostic.allowed.contains(&"epsilon".to_owned()));
}

#[test]
fn a_key_in_the_wrong_section_names_the_section_that_has_it() {
    let (diagnostic, _) = only("[sampling]\nmax_grad_norm = 1");
    assert_eq!(
        diagnostic.help.as_deref(),
        Some("`max_grad_norm` is a key of `[optimizer]`")
    );
    let (diagnostic, _) = only("group_size = 8");
    assert_eq!(
        diagnostic.help.as_deref(),
        Some("`group_size` is a key of `[sampling]`")
    );
}

#[test]
fn a_key_of_another_variant_names_that_variant() {
    let (diagnostic, _) = only("[algorithm]\nkind = \"grpo\"\nadvantage_mode = \"all\"");
    assert!(diagnostic.help.expect("help").contains("kind = \"nft\""));
}

#[test]
fn names_from_other_tools_are_understood() {
    assert_eq!(
        only("[optimizer]\nlr = 1e-4").0.nearest.as_deref(),
        Some("learning_rate")
    );
    assert_eq!(
        only("[device]\ndtype = \"bfloat16\"").0.nearest.as_deref(),
        Some("bf16")
    );
    assert_eq!(
        only("[optimiser]\nepsilon = 1e-4").0.nearest.as_deref(),
        Some("optimizer")
    );
}

#[test]
fn a_mistyped_key_of_another_section_is_still_found() {
    let (diagnostic, _) = only("[audit]\nguidance_scal = 2");
    assert!(
        diagnostic
            .help
            .expect("help")
            .contains("`guidance_scale` is a key of")
    );
}

#[test]
fn every_single_key_problem_has_its_code_place_and_path() {
    for (text, code, path, spanned) in [
        ("[run]\nsteps = 0", codes::OUT_OF_RANGE, "run.steps", "0"),
        ("[run]\nsteps = \"10\"", codes::WRONG_TYPE, "run.steps", "\"10\""),
        ("[run]\nsteps = 1.5", codes::WRONG_TYPE, "run.steps", "1.5"),
        ("[run]\nsteps = true", codes::WRONG_TYPE, "run.steps", "true"),
        ("[run]\nseed = -1", codes::OUT_OF_RANGE, "run.seed", "-1"),
        (
            "[run]\nseed = 0x1_0000_0000_0000_0000",
            codes::OUT_OF_RANGE,
            "",
            "0x1_0000_0000_0000_0000",
        ),
        ("[run]\nname = \"\"", codes::WRONG_LENGTH, "run.name", "\"\""),
        ("[run]\nname = 3", codes::WRONG_TYPE, "run.name", "3"),
        (
            "[run]\nname = 2020-01-01",
            codes::WRONG_TYPE,
            "run.name",
            "2020-01-01",
        ),
        (
            "[run]\non_exists = \"resumee\"",
            codes::NOT_ALLOWED,
            "run.on_exists",
            "\"resumee\"",
        ),
        ("[run]\non_exists = 1", codes::WRONG_TYPE, "run.on_exists", "1"),
        ("run = 1", codes::WRONG_TYPE, "run", "1"),
        (
            "[optimizer]\nlearning_rate = 0.0",
            codes::OUT_OF_RANGE,
            "optimizer.learning_rate",
            "0.0",
        ),
        (
            "[optimizer]\nlearning_rate = inf",
            codes::OUT_OF_RANGE,
            "optimizer.learning_rate",
            "inf",
        ),
        (
            "[optimizer]\nlearning_rate = nan",
            codes::OUT_OF_RANGE,
            "optimizer.learning_rate",
            "nan",
        ),
        (
            "[optimizer]\nbetas = [0.9]",
            codes::WRONG_LENGTH,
            "optimizer.betas",
            "[0.9]",
        ),
        (
            "[optimizer]\nbetas = [0.9, 1.0]",
            codes::OUT_OF_RANGE,
            "optimizer.betas.1",
            "1.0",
        ),
        (
            "[optimizer]\nbetas = 0.9",
            codes::WRONG_TYPE,
            "optimizer.betas",
            "0.9",
        ),
        (
            "[scheduler]\nnoise_level = \"x\"",
            codes::WRONG_TYPE,
            "scheduler.noise_level",
            "\"x\"",
        ),
        (
            "[scheduler]\nnoise_level = [1, \"x\"]",
            codes::WRONG_TYPE,
            "scheduler.noise_level.1",
            "\"x\"",
        ),
        (
            "[scheduler]\nwindow = \"all\"",
            codes::WRONG_TYPE,
            "scheduler.window",
            "\"all\"",
        ),
        (
            "[data]\nkind = \"digits\"\nimage_size = 12",
            codes::OUT_OF_RANGE,
            "data.image_size",
            "12",
        ),
        (
            "[lora]\ntargets = [\"a\", \"a\"]",
            codes::REPEATED_ENTRY,
            "lora.targets.1",
            "\"a\"",
        ),
        (
            "[data]\nkind = \"digit\"",
            codes::NOT_ALLOWED,
            "data.kind",
            "\"digit\"",
        ),
        ("[data]\nimage_size = 8", codes::MISSING_KEY, "data", "[data]"),
        (
            "[[rewards]]\nkind = \"digit-classifier\"",
            codes::MISSING_KEY,
            "rewards.0.weights",
            "[[rewards]]",
        ),
        (
            "rewards = { kind = \"jpeg-compressibility\" }",
            codes::WRONG_TYPE,
            "rewards",
            "{ kind = \"jpeg-compressibility\" }",
        ),
        (
            "[acceleration]\nshared = 1",
            codes::WRONG_TYPE,
            "acceleration.shared",
            "1",
        ),
        (
            "[acceleration]\nshared = {}",
            codes::MISSING_KEY,
            "acceleration.shared.name",
            "shared",
        ),
        (
            "[runtime.options]\na = { b = [nan] }",
            codes::OUT_OF_RANGE,
            "runtime.options.a.b.0",
            "nan",
        ),
        ("preset = \"digits\"", codes::NOT_ALLOWED, "preset", "\"digits\""),
        ("[lora]\ntargets = []", codes::WRONG_LENGTH, "lora.targets", "[]"),
        (
            "[model]\n\"odd key\" = 1",
            codes::UNKNOWN_KEY,
            "model.\"odd key\"",
            "\"odd key\"",
        ),
    ] {
        let (diagnostic, found) = only(text);
        assert_eq!(
            (diagnostic.code, diagnostic.path.as_str()),
            (code, path),
            "{text}"
        );
        let found = if found.starts_with('[') || !spanned.starts_with('[') {
            found
        } else {
            format!("[{found}]")
        };
        assert_eq!(found, spanned, "{text}: {}", diagnostic.message);
        assert_eq!(diagnostic.severity, Severity::Error, "{text}");
    }
}

#[test]
fn quotes_too_many_or_too_few_are_pointed_out() {
    let help = |text| only(text).0.help.expect("help");
    assert_eq!(help("[run]\nsteps = \"10\""), "write it without quotes: 10");
    assert_eq!(
        help("[logging]\ntensorboard = \"true\""),
        "write it without quotes: true"
    );
    assert_eq!(help("[run]\nname = 3"), "write it in quotes: \"3\"");
}

#[test]
fn all_errors_are_reported_at_once_in_the_order_of_the_text() {
    let text = "config_version = 1\nx = 1\n[run]\nsteps = 0\nname = \"a/b\"\n[sampling]\ngroup_size = 3\nmicro_batch = 7\n\
                [optimiser]\n[ema]\nenabled = 1\n";
    let report = report(text, &["run.seed=-1", "oops"]);
    let found: Vec<_> = report
        .diagnostics
        .iter()
        .map(|one| (one.code, one.line.unwrap_or(0)))
        .collect();
    assert_eq!(
        found,
        [
            (codes::UNKNOWN_KEY, 2),
            (codes::OUT_OF_RANGE, 4),
            (codes::RULE_RUN_NAME, 5),
            (codes::RULE_BATCH_GEOMETRY, 8),
            (codes::UNKNOWN_KEY, 9),
            (codes::WRONG_TYPE, 11),
            (codes::OUT_OF_RANGE, 1),
            (codes::BAD_OVERRIDE, 1),
        ],
        "{report}"
    );
    assert_eq!(
        report
            .source_of(&report.diagnostics[6])
            .map(|source| source.text.as_str()),
        Some("run.seed=-1")
    );
}

#[test]
fn rules_on_a_key_that_is_wrong_in_itself_are_not_reported_as_well() {
    let (diagnostic, _) = only("[sampling]\ngroup_size = 0\nmicro_batch = 7");
    assert_eq!(diagnostic.code, codes::OUT_OF_RANGE);
}

#[test]
fn a_missing_version_says_which_line_to_add() {
    let report = report("[run]\nseed = 1\n", &[]);
    assert_eq!(report.diagnostics.len(), 1, "{report}");
    let diagnostic = &report.diagnostics[0];
    assert_eq!(
        (diagnostic.code, diagnostic.path.as_str()),
        (codes::MISSING_KEY, "config_version")
    );
    assert_eq!(
        diagnostic.help.as_deref(),
        Some("add `config_version = 1` as the first line")
    );
}

#[test]
fn other_versions_are_told_what_to_do_and_nothing_else() {
    for (text, wanted) in [
        ("config_version = 0\nx = 1\n", "flow-train migrate"),
        ("config_version = 2\nx = 1\n", "newer flow-train"),
        ("config_version = -3\nx = 1\n", "newer flow-train"),
        ("[sample]\nnum_steps = 3\n", "flow-train migrate"),
    ] {
        let report = report(text, &[]);
        assert_eq!(report.diagnostics.len(), 1, "{report}");
        assert_eq!(report.diagnostics[0].code, codes::CONFIG_VERSION);
        assert!(
            report.diagnostics[0]
                .help
                .as_deref()
                .is_some_and(|help| help.contains(wanted)),
            "{report}"
        );
    }
}

#[test]
fn syntax_errors_come_with_the_other_errors_but_without_their_consequences() {
    let report = report("config_version = 1\n[run]\nseed = \nname = 3\n[sampling\n", &[]);
    let codes: Vec<_> = report
        .diagnostics
        .iter()
        .map(|one| (one.code, one.line.unwrap_or(0)))
        .collect();
    assert!(codes.contains(&(codes::SYNTAX, 3)), "{report}");
    assert!(codes.contains(&(codes::SYNTAX, 5)), "{report}");
    assert!(codes.contains(&(codes::WRONG_TYPE, 4)), "{report}");
    assert!(
        !codes.iter().any(|(code, _)| *code == codes::MISSING_KEY),
        "{report}"
    );
}

#[test]
fn a_key_twice_is_an_error() {
    let report = report("config_version = 1\n[run]\nseed = 1\nseed = 2\n", &[]);
    assert_eq!(report.diagnostics[0].code, codes::SYNTAX);
    assert_eq!(report.diagnostics[0].line, Some(4));
}

#[test]
fn bad_overrides_say_how_to_write_one() {
    for (text, wanted) in [
        ("run.seed", "no `=`"),
        ("=3", "not a key"),
        ("a..b=3", "not a key"),
        ("a\nb=3", "not a key"),
        ("run.name=", "gives no value"),
        ("run.name=\"a", "not TOML"),
        ("rewards.3.weight=1", "is empty"),
        ("rewards.first.weight=1", "by its number"),
    ] {
        let report = report("config_version = 1\n", &[text]);
        assert_eq!(report.diagnostics.len(), 1, "{report}");
        assert_eq!(report.diagnostics[0].code, codes::BAD_OVERRIDE, "{report}");
        assert!(report.diagnostics[0].message.contains(wanted), "{report}");
        assert!(report.diagnostics[0].help.is_some());
    }
}

#[test]
fn an_unknown_key_in_an_override_points_into_the_override() {
    let report = report("config_version = 1\n", &["optimizer.learning_rat=1"]);
    let diagnostic = &report.diagnostics[0];
    assert_eq!(
        (diagnostic.code, diagnostic.file.as_deref()),
        (codes::UNKNOWN_KEY, Some("--set"))
    );
    assert_eq!(diagnostic.nearest.as_deref(), Some("learning_rate"));
}

#[test]
fn the_plain_text_shows_the_line_and_carets_below_the_place() {
    let text =
        "config_version = 1\n[run]\n\tsteps = 0 # größer\nname = \"é\"\n[optimizer]\nlearning_rte = 1\n";
    let expected = "\
error[out-of-range]: `run.steps` is 0, but must be 1 to 100000000
 --> a.toml:3:10
  |
3 | \tsteps = 0 # größer
  | \t        ^
  = allowed: 1 to 100000000

error[unknown-key]: `[optimizer]` has no key `learning_rte`
 --> a.toml:6:1
  |
6 | learning_rte = 1
  | ^^^^^^^^^^^^
  = help: did you mean `learning_rate`?
  = allowed: learning_rate, betas, epsilon, weight_decay, max_grad_norm, gradient_accumulation, warmup_steps, schedule, moments, gradients, weights

2 errors
";
    assert_eq!(report(text, &[]).render(), expected);
}

#[test]
fn columns_count_characters_and_windows_line_ends_and_byte_order_marks_do_no_harm() {
    let report = report(
        "\u{feff}config_version = 1\r\n[run]\r\nname = \"ü\" \r\nsteps = 0\r\n",
        &[],
    );
    assert_eq!(
        (report.diagnostics[0].line, report.diagnostics[0].column),
        (Some(4), Some(9)),
        "{report}"
    );
    assert!(!report.render().contains('\r'));
}

#[test]
fn diagnostics_serialise_for_machines() {
    let report = report("config_version = 1\n[run]\nsteps = 0\n", &[]);
    let json = serde_json::to_value(&report).expect("JSON");
    assert_eq!(json["diagnostics"][0]["code"], "out-of-range");
    assert_eq!(json["diagnostics"][0]["span"]["start"], 33);
    assert_eq!(json["diagnostics"][0]["severity"], "error");
}

/// What the fuzz target checks of any bytes holds for its seeds, however short they are cut and wherever a byte is another.
#[test]
fn the_seeds_of_the_fuzz_target_hold_whole_cut_and_changed() {
    let seeds = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/seeds/config"));
    let seeds: Vec<_> = seeds
        .expect("the seeds")
        .map(|entry| entry.expect("a seed").path())
        .collect();
    assert!(seeds.len() >= 4, "{seeds:?}");
    for seed in seeds {
        let whole = std::fs::read(&seed).expect("a seed");
        fuzz_config::check(&test_catalog::CATALOG, &whole);
        // 61 and 67 are prime, so that no regular text is met at the same places always.
        for at in (0..whole.len()).step_by(whole.len().div_ceil(61)) {
            fuzz_config::check(&test_catalog::CATALOG, &whole[..at]);
        }
        for (number, at) in (0..whole.len()).step_by(whole.len().div_ceil(67)).enumerate() {
            let mut changed = whole.clone();
            changed[at] = [b'"', b'[', 0, b'=', b'9', b'\n', 0xff][number % 7];
            fuzz_config::check(&test_catalog::CATALOG, &changed);
        }
    }
}
