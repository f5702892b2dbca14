//! Prints the table of rules as Markdown, as it stands in the README: `cargo run --release -p flow-import --example
//! mapping`.

fn main() {
    print!("{}", flow_import::mapping());
}
