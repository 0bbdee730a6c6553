from kerasbert.tasks.pretrain import pretrain as pretrain
