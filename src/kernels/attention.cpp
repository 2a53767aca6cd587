// Shape requirements of both backends' flash kernels.
#include "kernels/attention.h"

#include "base/error.h"

namespace quern::kernels {

void check_attention(const AttentionShape& s) {
  QUERN_CHECK(s.D > 0 && s.D % 8 == 0 && s.D <= 256, "attention: head_dim is ", s.D,
              ", flash takes a multiple of 8 up to 256; choose attention = naive");
  QUERN_CHECK(s.Hk > 0 && s.H % s.Hk == 0, "attention: k has ", s.Hk,
              " heads, expected a divisor of q's ", s.H);
  QUERN_CHECK(s.B >= 0 && s.Tq >= 0 && s.Tk >= 0, "attention: q has batch ", s.B, " and length ",
              s.Tq, ", k has length ", s.Tk, ", expected none to be negative");
}

}  // namespace quern::kernels
