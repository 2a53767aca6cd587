// Trains a small Transformer with a custom op on your text, saves the weights, loads them into a
// second model and generates text. docs/library.md explains the parts.
//   library [TEXT [FOLDER]]
// The weights go to FOLDER, otherwise to a folder beside the program.
#include <cstdio>
#include <exception>
#include <filesystem>
#include <string>

#include <quern/autograd/ops/binary.h>
#include <quern/autograd/ops/cross_entropy.h>
#include <quern/autograd/ops/pointwise.h>
#include <quern/autograd/tape.h>
#include <quern/data/sampler.h>
#include <quern/data/text_corpus.h>
#include <quern/generate/generate.h>
#include <quern/hf/hf_export.h>
#include <quern/model/transformer_lm.h>
#include <quern/nn/arena.h>
#include <quern/optim/adamw.h>
#include <quern/run/weights.h>
#include <quern/tensor/factory.h>
#include <quern/text/byte_tokenizer.h>

using namespace quern;

constexpr int64_t kBatch = 8, kContext = 32;
constexpr int kSteps = 100;

ModelConfig small_model() {
  ModelConfig config;
  config.vocab_size = kByteVocabulary;  // 256 bytes and the end of text
  config.context = kContext;
  config.d_model = 64;
  config.d_ff = 192;
  config.layers = 2;
  config.heads = 4;
  return config;
}

TokenSource own_data(int argc, char** argv) {
  if (argc > 1) return {read_text(argv[1]), argv[1]};
  std::vector<uint16_t> tokens;
  for (int i = 0; i < 200; ++i) {
    for (const char c : std::string("The mill turns, and the stones grind.\n")) {
      tokens.push_back(static_cast<unsigned char>(c));
    }
  }
  return {tokens, "a sentence, repeated"};
}

// cap tanh(x / cap): keeps logits within (-cap, cap).
Variable softcap(const Variable& x, double cap) {
  const Tensor t = tanh(scale(x.detach(), 1.0 / cap)).value();  // saves: t
  return record("softcap", scale(t, cap).value(), {x}, [t](Gradients& g) {
    const Variable slope = scale(mul(t, t), -1.0, 1.0);  // 1 - t^2
    g.add(0, mul(g.output(), slope).value());
  });
}

double train(const TransformerLM& model, ParameterArena& arena, const TokenSource& data) {
  const RandomSampler sampler(data.size(), kContext, /*seed=*/1);
  AdamW optimizer(arena, {.weight_decay = 0.01});
  std::vector<int64_t> starts(kBatch);
  std::vector<int32_t> tokens(kBatch * kContext), targets(kBatch * kContext);
  double last = 0.0;
  for (int step = 1; step <= kSteps; ++step) {
    sampler.draw(static_cast<uint64_t>(step) * kBatch, starts);
    copy_windows(data, starts, kContext, tokens.data(), targets.data());
    arena.zero_grad();
    const Variable logits = model.logits(from_vector(tokens, {kBatch, kContext}));  // (B, T, V)
    const Variable loss =
        cross_entropy(softcap(logits, 15.0), from_vector(targets, {kBatch, kContext}));
    backward(loss);
    optimizer.step(3e-3);
    last = loss.value().item();
    if (step == 1 || step % 25 == 0) std::printf("step %3d  loss %.4f\n", step, last);
  }
  return last;
}

void save(const std::filesystem::path& folder, const TransformerLM& model,
          const ParameterArena& arena) {
  const HostTensors weights = weights_of(arena);
  export_hf(folder, model.config(), weights.views);
}

void load(const std::filesystem::path& folder, ParameterArena& arena) {
  load_weights(arena, TensorSource::open(folder));
}

std::string sample(const TransformerLM& model, const std::string& prompt) {
  SampleSection options;
  options.tokens = 40;
  options.temperature = 0.0;  // the most probable token
  return prompt +
         ByteTokenizer().decode(generate(model, ByteTokenizer().encode(prompt), options).tokens);
}

int main(int argc, char** argv) try {
  const TokenSource data = own_data(argc, argv);
  TransformerLM model(small_model(), {});
  ParameterArena arena(model, {});  // allocates and initialises the weights
  const double loss = train(model, arena, data);

  namespace fs = std::filesystem;
  const fs::path folder = argc > 2 ? fs::path(argv[2]) : fs::path(argv[0]) += "-model";
  save(folder, model, arena);
  TransformerLM second(small_model(), {});
  ParameterArena second_arena(second, {.training = false});
  load(folder, second_arena);

  const std::string text = sample(model, "The ");
  std::printf("%s\n", text.c_str());
  const bool same = sample(second, "The ") == text;
  std::printf("the loaded model writes %s\n", same ? "the same text" : "another text");
  return same && (argc > 1 || loss < 1.0) ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "library: %s\n", error.what());
  return 1;
}
