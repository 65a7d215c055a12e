//! Cases of leaders that follow each other, and of pods that another scheduler binds in between.
