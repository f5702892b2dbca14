//! What is written into CubeCL's store is what the version in use reads.

use flow_precompile::store::CUBECL;

#[test]
fn the_store_is_that_of_the_cubecl_in_use() {
    // From the package's folder, where tests start: one target folder may serve several clones, and a path that is compiled in
    // would be the first one's.
    let lock: toml::Table = std::fs::read_to_string("../../Cargo.lock")
        .expect("the workspace has a lock file")
        .parse()
        .expect("TOML");
    let packages = lock["package"].as_array().expect("packages");
    let version = |name: &str| {
        let package = packages
            .iter()
            .find(|package| package["name"].as_str() == Some(name));
        package.and_then(|package| package["version"].as_str())
    };
    for name in ["cubecl-cuda", "cubecl-server", "cubecl-environment"] {
        assert_eq!(
            version(name),
            Some(CUBECL),
            "{name}: compare `Entry`, the namespace and `options` with its sources, and measure a cold start on a GPU"
        );
    }
}
