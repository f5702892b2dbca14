//! Lists the policies and the engines they become.

use flow_checkpoint::Policy;

fn main() {
    for name in Policy::names() {
        let policy = Policy::named(name).expect("a listed policy exists");
        println!("{policy}: {:?}", policy.engine());
    }
}
