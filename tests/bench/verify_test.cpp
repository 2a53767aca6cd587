#include "bench/verify.h"

#include <cmath>
#include <limits>

#include "bench/golden_copy.h"
#include "bench/verify_cases.h"
#include "model/model_cost.h"

namespace quern {
namespace {

using namespace testing_support;

class VerifyOnCpu : public testing::TestWithParam<VerifyParameter> {};

TEST_P(VerifyOnCpu, AgreesWithTransformers) {
  const VerifyResult result = verify_on(DeviceChoice::cpu, GetParam());
  EXPECT_TRUE(result.passed()) << verify_table(result, false);
}

INSTANTIATE_TEST_SUITE_P(Golden, VerifyOnCpu, all_verify_parameters(), verify_name);

TEST(Verify, RecomputationGivesTheSameResults) {
  const GoldenCase golden = GoldenCase::open(golden_folder() / "mha");
  ModelOptions options;
  options.recompute = Recompute::blocks;
  const VerifyResult kept = verify_case(golden, {}), again = verify_case(golden, options);
  ASSERT_EQ(kept.deviations.size(), again.deviations.size());
  for (size_t i = 0; i < kept.deviations.size(); ++i) {
    EXPECT_EQ(kept.deviations[i].error, again.deviations[i].error) << kept.deviations[i].name;
  }
}

TEST(Verify, ComparesEveryGradientAndWeight) {
  const GoldenCase golden = GoldenCase::open(golden_folder() / "gqa_tied");
  const VerifyResult result = verify_case(golden, {});
  const size_t parameters = parameter_table(golden.config).slices().size();
  EXPECT_EQ(result.deviations.size(), 4 + 2 * parameters);
}

// One weight of 10240 off by 0.05, as large as its standard deviation: 0.6 % of the matrix.
TEST(Verify, FindsOneWrongWeight) {
  GoldenCopy copy("mha");
  copy.add("model.safetensors", "model.layers.1.mlp.up_proj.weight", 7, 0.05f);
  const VerifyResult result = verify_case(GoldenCase::open(copy.path()), {});
  EXPECT_FALSE(result.passed());
  EXPECT_NE(verify_table(result, false).find("FAILED"), std::string::npos);
}

TEST(Verify, FindsAWrongReference) {
  for (const char* tensor : {"logits", "losses", "grad_norms", "grad.model.norm.weight",
                             "final.model.layers.0.self_attn.k_proj.weight"}) {
    GoldenCopy copy("gqa_tied");
    copy.add("expected.safetensors", tensor, 3, 0.1f);
    EXPECT_FALSE(verify_case(GoldenCase::open(copy.path()), {}).passed()) << tensor;
  }
}

TEST(Verify, NotANumberIsBeyondAnyTolerance) {
  GoldenCopy copy("mha");
  copy.add("expected.safetensors", "logits", 0, std::numeric_limits<float>::quiet_NaN());
  const VerifyResult result = verify_case(GoldenCase::open(copy.path()), {});
  EXPECT_FALSE(result.passed());
  EXPECT_TRUE(std::isnan(result.deviations[0].error));
}

TEST(Verify, FlashRefusesAHeadThatItCannotDo) {
  GoldenCase golden = GoldenCase::open(golden_folder() / "mha");
  golden.config.head_dim = 20;
  expect_error([&] { verify_case(golden, {}); }, {"head_dim", "20", "naive"});
}

// A Mistral with full attention is a Llama: the same weights give the same ten steps.
TEST(Verify, AMistralInAllModes) {
  GoldenCopy copy("gqa_tied");
  copy.replace("config.json", "LlamaForCausalLM", "MistralForCausalLM");
  copy.replace("config.json", R"("model_type": "llama")",
               R"("sliding_window": null, "model_type": "mistral")");
  const GoldenCase golden = GoldenCase::open(copy.path());
  for (const ModelOptions& options : all_combinations({})) {
    const VerifyResult result = verify_case(golden, options);
    EXPECT_TRUE(result.passed()) << verify_table(result, false);
  }
}

TEST(Verify, AllCombinationsAreSixteen) {
  const std::vector<ModelOptions> all = all_combinations({});
  EXPECT_EQ(all.size(), 16u);
  for (size_t i = 0; i < all.size(); ++i) {
    for (size_t j = 0; j < i; ++j) EXPECT_NE(all[i], all[j]);
  }
}

TEST(Verify, VerboseTableNamesEveryParameter) {
  const GoldenCase golden = GoldenCase::open(golden_folder() / "gqa_tied");
  const std::string table = verify_table(verify_case(golden, {}), true);
  for (const auto& [name, shape, begin] : parameter_table(golden.config).slices()) {
    EXPECT_NE(table.find("gradient of " + name), std::string::npos) << name;
    EXPECT_NE(table.find("final " + name), std::string::npos) << name;
  }
}

}  // namespace
}  // namespace quern
