//! Prints the page of the book that lists all codes.

fn main() {
    print!("{}", flow_validate::markdown());
}
