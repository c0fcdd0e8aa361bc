"""The peers of the benchmarks that make only the logits that count compute the loss of the model's own forward pass."""
import pathlib
import sys
import unittest

from peers import peers

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench"))
torch, transformers, WITHOUT = peers("torch", "transformers")


@unittest.skipIf(WITHOUT, WITHOUT)
class EqualWork(unittest.TestCase):
    def test_bert_loss_of_masked_logits_is_that_of_all(self):
        import bert_step_vs_peer
        _, model = bert_step_vs_peer.peer_model(layers=2, hidden=64, heads=4, vocab=500)
        inputs, labels, order = bert_step_vs_peer.peer_batch(torch, vocab=500, length=64)
        made = []
        model.cls.predictions.decoder.register_forward_hook(lambda *call: made.append(call[2].shape[:-1].numel()))
        few = bert_step_vs_peer.loss_of_masked(model, inputs, labels, order)
        every = model(**inputs, labels=labels, next_sentence_label=order).loss
        self.assertAlmostEqual(few.item(), every.item(), places=5)
        self.assertEqual(made, [(labels != -100).sum(), labels.numel()])

    def test_t5_loss_of_scored_logits_is_that_of_all(self):
        import t5_vs_peer
        _, model = t5_vs_peer.peer_model()
        tokens, labels = torch.randint(0, 500, (2, 32)), torch.randint(0, 500, (2, 8))
        present = torch.ones(2, 32, dtype=torch.long)
        present[:, 24:] = 0
        labels[:, 6:] = -100
        few = t5_vs_peer.loss_of_scored(model, tokens, present, labels)
        every = model(input_ids=tokens, attention_mask=present, labels=labels).loss
        self.assertAlmostEqual(few.item(), every.item(), places=4)

    def test_windows_scored_by_few_logits_have_the_loss_of_all(self):
        import eval_peers
        config = transformers.LlamaConfig(vocab_size=300, hidden_size=64, intermediate_size=128, num_hidden_layers=2,
                                          num_attention_heads=4)
        torch.manual_seed(3)
        peer = eval_peers.Peer(transformers.LlamaForCausalLM(config).eval(), torch.randint(0, 300, (200,)), window=64)
        made = []
        peer.model.lm_head.register_forward_hook(lambda *call: made.append(call[2].shape[:-1].numel()))
        _, few = peer.measure(windows=5, stride=16, batch=2, few=True)
        self.assertEqual(sum(made), 63 + 4 * 16)
        _, every = peer.measure(windows=5, stride=16, batch=2, few=False)
        self.assertAlmostEqual(few, every, delta=1e-4 * every)


if __name__ == "__main__":
    unittest.main()
