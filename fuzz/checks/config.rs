//! The config parser and the migrations: any text gives a config or a report, never a panic, and what is reported can
//! be rendered. A migration keeps a good config good.

/// Panics if that does not hold for `bytes`.
pub fn check(catalog: &flow_config::Catalog, bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    match flow_config::parse_str(catalog, text) {
        Ok(resolved) => {
            resolved.render();
            resolved.check_training().render();
        }
        Err(report) => {
            assert!(!report.render().is_empty(), "a refusal says why");
        }
    }
    if let Ok((migrated, _)) = flow_config::migrate(text)
        && flow_config::parse_str(catalog, text).is_ok()
    {
        assert!(
            flow_config::parse_str(catalog, &migrated).is_ok(),
            "a migration keeps a good config good"
        );
    }
    // The first line as an override of the rest.
    if let Some((first, rest)) = text.split_once('\n')
        && let Err(report) = flow_config::parse_named(catalog, "fuzz.toml", rest, &[first.to_owned()])
    {
        report.render();
    }
}
