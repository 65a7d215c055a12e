use phalanx_benches::waiting::*;
fn main() {
    for users in [Users::Others, Users::Gangs] {
        for sizes in [3, 30] {
            let t = std::time::Instant::now();
            let mut w = Waiting::new(5000, 100, 10000, users, sizes);
            println!("{users:?} {sizes} setup {:?}", t.elapsed());
            for _ in 0..4 {
                println!("   try {:?} nothing {:?}", w.try_all(), w.cycle());
            }
            let t = std::time::Instant::now();
            w.grow_old();
            println!("   old {:?}", t.elapsed());
            for _ in 0..4 {
                println!("   try {:?} nothing {:?}", w.try_all(), w.cycle());
            }
        }
    }
}
