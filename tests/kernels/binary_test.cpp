#include "kernels/binary.h"

#include "support/kernel_test.h"

namespace quern::kernels {
namespace {

using namespace kernel_test;

struct Case {
  std::vector<int64_t> shape, a_strides, b_strides;
  int64_t a_size, b_size;
  std::vector<int64_t> dc_strides = {};  // none: packed
};

// Contiguous, a row and a column broadcast, a scalar, a transposed operand, empty, one long row.
std::vector<Case> cases() {
  return {{{33}, {1}, {1}, 33, 33},
          {{5, 31}, {31, 1}, {0, 1}, 155, 31},
          {{5, 31}, {31, 1}, {1, 0}, 155, 5},
          {{5, 31}, {0, 1}, {31, 1}, 31, 155},
          {{3, 4, 7}, {0, 0, 0}, {28, 7, 1}, 1, 84},
          {{6, 9}, {1, 6}, {9, 1}, 54, 54},
          {{2, 3, 1, 5}, {15, 5, 5, 1}, {5, 0, 5, 1}, 30, 10},
          {{4, 0}, {0, 1}, {1, 0}, 1, 4},
          {{}, {}, {}, 1, 1},
          {{40000}, {1}, {0}, 40000, 1},
          {{5, 31}, {31, 1}, {0, 1}, 155, 31, {1, 5}},
          {{5, 31}, {31, 1}, {31, 1}, 155, 155, {0, 1}},
          {{2, 3, 4, 7}, {84, 28, 7, 1}, {0, 7, 0, 1}, 168, 21, {84, 7, 21, 1}}};
}

std::vector<int64_t> dc_strides_of(const Case& c) {
  if (!c.dc_strides.empty()) return c.dc_strides;
  std::vector<int64_t> strides(c.shape.size(), 1);
  for (size_t d = c.shape.size(); d-- > 1;) strides[d - 1] = strides[d] * c.shape[d];
  return strides;
}

BinaryLayout layout_of(const Case& c) {
  const std::vector<int64_t> dc_strides = dc_strides_of(c);
  BinaryLayout layout;
  std::copy(dc_strides.begin(), dc_strides.end(), layout.dc_strides);
  layout.ndim = static_cast<int>(c.shape.size());
  std::copy(c.shape.begin(), c.shape.end(), layout.shape);
  std::copy(c.a_strides.begin(), c.a_strides.end(), layout.a_strides);
  std::copy(c.b_strides.begin(), c.b_strides.end(), layout.b_strides);
  return layout;
}

// Each operand's index for row-major position p.
int64_t index_of(int64_t p, const std::vector<int64_t>& shape,
                 const std::vector<int64_t>& strides) {
  int64_t index = 0;
  for (size_t d = shape.size(); d-- > 0;) {
    index += p % shape[d] * strides[d];
    p /= shape[d];
  }
  return index;
}

template <class T, class F>
void check(F f, double (*c)(double, double), double (*da)(double, double),
           double (*db)(double, double)) {
  for (const Case& test : cases()) {
    int64_t n = 1;
    for (const int64_t extent : test.shape) n *= extent;
    const auto a = random_vector<T>(test.a_size, 1), b = random_vector<T>(test.b_size, 2, 0.5, 2.0);
    const auto dc = random_vector<T>(n, 3);
    std::vector<double> y, ga, gb;
    for (int64_t p = 0; p < n; ++p) {
      const double x = to_double(a[index_of(p, test.shape, test.a_strides)]);
      const double z = to_double(b[index_of(p, test.shape, test.b_strides)]);
      y.push_back(c(x, z));
      const double grad = to_double(dc[index_of(p, test.shape, dc_strides_of(test))]);
      ga.push_back(da(x, z) * grad);
      gb.push_back(db(x, z) * grad);
    }
    const BinaryLayout layout = layout_of(test);
    Guarded<T> out(n), out_a(n), out_b(n), only_b(n);
    cpu::binary_forward(out.data(), a.data(), b.data(), layout, f, cpu::Stream{});
    const T* read_a = F::kReadsA ? a.data() : nullptr;
    const T* read_b = F::kReadsB ? b.data() : nullptr;
    cpu::binary_backward(out_a.data(), out_b.data(), read_a, read_b, dc.data(), layout, f,
                         cpu::Stream{});
    cpu::binary_backward<T>(nullptr, only_b.data(), read_a, read_b, dc.data(), layout, f,
                            cpu::Stream{});
    expect_near(out.values(), y);
    expect_near(out_a.values(), ga);
    expect_near(out_b.values(), gb);
    EXPECT_TRUE(same_bits(only_b.values(), out_b.values()));
  }
}

double one(double, double) {
  return 1.0;
}
double minus_one(double, double) {
  return -1.0;
}

TEST(Binary, Add) {
  for_float_types([](auto t) {
    check<decltype(t)>(
        Add{}, [](double a, double b) { return a + b; }, one, one);
  });
}
TEST(Binary, Sub) {
  for_float_types([](auto t) {
    check<decltype(t)>(
        Sub{}, [](double a, double b) { return a - b; }, one, minus_one);
  });
}
TEST(Binary, Mul) {
  for_float_types([](auto t) {
    check<decltype(t)>(
        Mul{}, [](double a, double b) { return a * b; }, [](double, double b) { return b; },
        [](double a, double) { return a; });
  });
}
TEST(Binary, Div) {
  for_float_types([](auto t) {
    check<decltype(t)>(
        Div{}, [](double a, double b) { return a / b; }, [](double, double b) { return 1 / b; },
        [](double a, double b) { return -a / (b * b); });
  });
}
TEST(Binary, Axpby) {
  for_float_types([](auto t) {
    check<decltype(t)>(
        Axpby{0.75, -1.5}, [](double a, double b) { return 0.75 * a - 1.5 * b; },
        [](double, double) { return 0.75; }, [](double, double) { return -1.5; });
  });
}

TEST(Binary, AxpbySquare) {
  for_float_types([](auto t) {
    check<decltype(t)>(
        AxpbySquare{0.75, 1.5}, [](double a, double b) { return 0.75 * a + 1.5 * b * b; },
        [](double, double) { return 0.75; }, [](double, double b) { return 3.0 * b; });
  });
}

TEST(Binary, InPlace) {
  const auto a = random_vector<float>(40003, 1), b = random_vector<float>(40003, 2);
  BinaryLayout layout;
  layout.ndim = 1;
  layout.shape[0] = 40003;
  layout.a_strides[0] = layout.b_strides[0] = 1;
  Guarded<float> c(40003), over_a(a), over_b(b);
  cpu::binary_forward(c.data(), a.data(), b.data(), layout, Sub{}, cpu::Stream{});
  cpu::binary_forward(over_a.data(), over_a.data(), b.data(), layout, Sub{}, cpu::Stream{});
  cpu::binary_forward(over_b.data(), a.data(), over_b.data(), layout, Sub{}, cpu::Stream{});
  EXPECT_TRUE(same_bits(over_a.values(), c.values()));
  EXPECT_TRUE(same_bits(over_b.values(), c.values()));
}

}  // namespace
}  // namespace quern::kernels
