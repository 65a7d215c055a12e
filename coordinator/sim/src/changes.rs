//! Changes that users make while gangs wait and run: sizes, ceilings, queues and nodes that come, change and go.
//! What would keep a gang from ever running is put right when the faults have stopped.

use phalanx_common::units::Time;
use phalanx_coordinator::api::{Kind, Object};
use serde_json::json;

use crate::random::Random;
use crate::workload::{Change, Step, Workload};

impl Workload {
    /// Draws changes of queues, nodes and priority classes.
    pub(crate) fn draw_changes(&mut self, random: &mut Random, within_ms: u64) {
        let first: Vec<Object> = self.first.clone();
        for object in first {
            match object.kind {
                Kind::Queue => self.change_queue(random, &object, within_ms),
                Kind::Node => self.change_plain_node(random, &object, within_ms),
                Kind::PriorityClass if random.per_mille(60) => self.goes_away(random, &object, within_ms),
                _ => {}
            }
        }
        for at in 0..self.machines.len() {
            if random.per_mille(200) {
                self.draw_node_object(random, at, within_ms);
            }
        }
    }

    /// The object is deleted, and comes back a while later.
    fn goes_away(&mut self, random: &mut Random, object: &Object, within_ms: u64) {
        let at = random.between(0, within_ms);
        let back = at + random.between(100, 25_000);
        self.steps.push((Time(at), Step::Delete(object.kind, object.metadata.name.clone())));
        self.steps.push((Time(back), Step::Restore(Box::new(object.clone()))));
        self.last.push(Step::Restore(Box::new(object.clone())));
    }

    fn change_queue(&mut self, random: &mut Random, queue: &Object, within_ms: u64) {
        let name = queue.metadata.name.clone();
        let mut change = |random: &mut Random, change: Change| {
            let at = random.between(0, within_ms);
            self.steps.push((Time(at), Step::Change(Kind::Queue, name.clone(), change)));
        };
        let mut is_changed = false;
        if random.per_mille(250) {
            for _ in 0..random.between(1, 3) {
                let gpus = random.between(1, 16);
                change(random, Change::Ceiling(gpus));
            }
            is_changed = true;
        }
        if random.per_mille(120) {
            change(random, Change::Close);
            is_changed = true;
        }
        if is_changed {
            self.last.push(Step::Restore(Box::new(queue.clone())));
        }
        if random.per_mille(120) {
            self.goes_away(random, queue, within_ms);
        }
    }

    fn change_plain_node(&mut self, random: &mut Random, node: &Object, within_ms: u64) {
        if random.per_mille(300) {
            let at = random.between(0, within_ms);
            let cpu = random.between(1, 12).to_string();
            let spec = json!({
                "unschedulable": random.per_mille(400),
                "allocatable": { "cpu": cpu, "memory": "32Gi" },
            });
            let name = node.metadata.name.clone();
            self.steps.push((Time(at), Step::Change(Kind::Node, name, Change::Node(spec))));
            self.last.push(Step::Restore(Box::new(node.clone())));
        }
        if random.per_mille(200) {
            self.goes_away(random, node, within_ms);
        }
    }

    /// A machine with an agent gets an object too, which is changed and goes again.
    fn draw_node_object(&mut self, random: &mut Random, at: usize, within_ms: u64) {
        let Some(machine) = self.machines.get(at) else { return };
        let (name, gpus) = (machine.name.as_str().to_owned(), machine.inventory.gpus.len() as u64);
        let cpu = (machine.inventory.cpu_milli / 1000).to_string();
        let allocatable = json!({ "cpu": cpu, "memory": "512Gi", "nvidia.com/gpu": gpus });
        let whole = json!({ "allocatable": allocatable });
        let object = Object::new(Kind::Node, "", &name).with_spec(whole.clone());
        let begins = random.between(0, within_ms / 2);
        self.steps.push((Time(begins), Step::Create(Box::new(object.clone()))));
        for _ in 0..random.between(0, 2) {
            let mut changed = whole.clone();
            if random.per_mille(500) {
                changed["unschedulable"] = json!(true);
            } else {
                changed["allocatable"]["nvidia.com/gpu"] = json!(random.between(0, gpus));
            }
            let when = random.between(begins, within_ms);
            self.steps.push((Time(when), Step::Change(Kind::Node, name.clone(), Change::Node(changed))));
        }
        if random.per_mille(500) {
            let when = random.between(begins, within_ms);
            self.steps.push((Time(when), Step::Delete(Kind::Node, name.clone())));
        }
        self.last.push(if random.per_mille(500) {
            Step::Restore(Box::new(object))
        } else {
            Step::Delete(Kind::Node, name)
        });
    }
}
