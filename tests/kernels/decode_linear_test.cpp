#include "kernels/decode_linear.h"

#include "support/kernel_test.h"

namespace quern {
namespace {

using namespace kernel_test;
using kernels::DecodeLinear;
using kernels::DecodeOutput;

constexpr int64_t kRows = 3, kIn = 5, kOut = 6;
constexpr double kEps = 1e-2;  // large enough to matter

struct Case {
  DecodeOutput output;
  bool norm, bias, fp32_stream;
};

double at(const auto& x, int64_t i) {
  return to_double(x[static_cast<size_t>(i)]);
}

// The rows times w^T in double. The rows are x, or the norm of the residual stream.
template <class T>
std::vector<double> products(const Case& c, const std::vector<T>& x, const std::vector<T>& w,
                             const std::vector<float>& norm, const auto& stream) {
  std::vector<double> y;
  for (int64_t r = 0; r < kRows; ++r) {
    double squares = 0.0;
    for (int64_t i = 0; i < kIn; ++i) squares += std::pow(at(stream, r * kIn + i), 2);
    const double scale = 1.0 / std::sqrt(squares / kIn + kEps);
    for (int64_t o = 0; o < kOut; ++o) {
      double sum = 0.0;
      for (int64_t i = 0; i < kIn; ++i) {
        const double normed = at(stream, r * kIn + i) * scale * at(norm, i);
        sum += (c.norm ? normed : at(x, r * kIn + i)) * at(w, o * kIn + i);
      }
      y.push_back(sum);
    }
  }
  return y;
}

// S: the type of the residual stream.
template <class T, class S>
void check(const Case& c) {
  SCOPED_TRACE(testing::Message() << "output " << static_cast<int>(c.output)
                                  << (c.norm ? ", norm" : "") << (c.bias ? ", bias" : "")
                                  << (c.fp32_stream ? ", fp32 stream" : ""));
  const std::vector<T> w = random_vector<T>(kOut * kIn, 1), x = random_vector<T>(kRows * kIn, 2),
                       bias = random_vector<T>(kOut, 3);
  const std::vector<float> norm = random_vector<float>(kIn, 4, 0.5, 1.5);
  const bool adds = c.output == DecodeOutput::add;
  const int64_t width = c.output == DecodeOutput::swiglu ? kOut / 2 : kOut;
  const std::vector<S> before = random_vector<S>(kRows * (adds ? kOut : kIn), 5);
  Guarded<S> stream(before);
  Guarded<T> y(kRows * width);

  DecodeLinear<T> l{kRows, kIn, kOut, w.data(), c.norm ? nullptr : x.data(), norm.data(), kEps};
  l.bias = c.bias ? bias.data() : nullptr;
  l.stream = stream.data();
  l.fp32_stream = c.fp32_stream;
  l.output = c.output;
  l.y = y.data();
  kernels::cpu::decode_linear(l, {});

  const std::vector<double> product = products(c, x, w, norm, before);
  std::vector<double> expected;
  for (int64_t i = 0; i < kRows * width; ++i) {
    const int64_t gate = i / width * kOut + i % width;
    switch (c.output) {
      case DecodeOutput::store:
        expected.push_back(at(product, i) + (c.bias ? at(bias, i % kOut) : 0));
        break;
      case DecodeOutput::add: expected.push_back(at(product, i) + at(before, i)); break;
      case DecodeOutput::swiglu:
        expected.push_back(at(product, gate) / (1 + std::exp(-at(product, gate))) *
                           at(product, gate + width));
    }
  }
  // The norm and the products are rounded to T on the way.
  const double bound = std::is_same_v<T, float> ? 1e-6 : 0x1p-7;
  const std::vector<S> after = stream.values();
  if (adds) {
    expect_near(after, expected, bound);
  } else {
    expect_near(y.values(), expected, bound);
    EXPECT_TRUE(same_bits(after, before));
  }
}

TEST(DecodeLinear, AgreesWithPlainLoops) {
  for (const auto output : {DecodeOutput::store, DecodeOutput::add, DecodeOutput::swiglu}) {
    for (const bool other : {false, true}) {
      // The stream of `add` is not normed: its rows have another length.
      const bool norm = other && output != DecodeOutput::add;
      const bool bias = other && output == DecodeOutput::store;
      check<float, float>({output, norm, bias, false});
      check<bfloat16, bfloat16>({output, norm, bias, false});
      check<bfloat16, float>({output, norm, bias, true});
    }
  }
}

}  // namespace
}  // namespace quern
