// Runs whose files or folder fail them.
#include <cerrno>

#include "support/faults.h"
#include "trainer_fixture.h"

namespace quern {
namespace {

using namespace testing_support;

struct AtStep3 : Recorded {
  std::function<void()> action;
  void on_progress(int64_t step, double) override {
    if (step == 3) action();
  }
};

class RunFaults : public TrainerTest {
 protected:
  RunFaults() { train(every_second_step("whole"), whole_); }

  Config every_second_step(const std::string& out) const {
    Config c = config(out);
    c.train.steps = 8;
    c.train.checkpoint_every = c.train.eval_every = c.train.sample_every = 2;
    c.sample.tokens = 4;
    return c;
  }

  // Resumes the run and expects what an undisturbed one leaves. The log may lack rows of steps up
  // to `unlogged`.
  void expect_goes_on(const std::string& out, int64_t unlogged = 0) const {
    Config c = every_second_step(out);
    c.run.resume = c.run.out;
    Recorded rest;
    train(c, rest);
    EXPECT_TRUE(weights_of_run(out) == weights_of_run("whole"));
    EXPECT_EQ(read_file(folder_ / out / "samples.txt"), read_file(folder_ / "whole/samples.txt"));
    const std::string metrics = read_file(folder_ / out / "metrics.jsonl");
    for (int64_t step = 1; step <= 8; ++step) {
      const std::string row = cat("{\"step\":", step, ",\"loss\"");
      const size_t first = metrics.find(row);
      EXPECT_TRUE(first != std::string::npos || step <= unlogged) << row;
      if (first == std::string::npos) continue;
      EXPECT_EQ(metrics.find(row, first + 1), std::string::npos) << row;
    }
  }
  std::string weights_of_run(const std::string& out) const {
    const std::string weights =
        read_file(checkpoint_path(folder_ / out / "checkpoints", 8) / "model.safetensors");
    EXPECT_GT(weights.size(), 10000u);
    return weights;
  }

  Recorded whole_;
};

// From its first, second ... write on, or at that one alone.
TEST_F(RunFaults, AFullDiskForALogEndsTheRunWithItsLastStepSaved) {
  for (const std::string file : {"metrics.jsonl", "samples.txt"}) {
    for (const int fit : {0, 1, 2, 3}) {
      for (const bool once : {false, true}) {
        const std::string run = cat(file, fit, once ? "once" : "");
        SCOPED_TRACE(run);
        const fs::path path = folder_ / run / file;
        int writes = 0;
        {
          const FaultyCalls full([&](const std::string& call, const std::string& at) {
            if (call != "write" || at != path) return 0;
            const int number = writes++;
            return number == fit || (number > fit && !once) ? ENOSPC : 0;
          });
          Recorded recorded;
          expect_error([&] { train(every_second_step(run), recorded); },
                       {path.string(), "No space left on device"});
        }
        const auto saved = latest_checkpoint(folder_ / run / "checkpoints");
        ASSERT_TRUE(saved);
        expect_goes_on(run, once ? 0 : open_checkpoint(*saved).step);
      }
    }
  }
}

TEST_F(RunFaults, AFolderThatIsGoneIsNotMadeAnew) {
  const fs::path run = folder_ / "run", aside = folder_ / "aside";
  AtStep3 recorded;
  recorded.action = [&] { fs::rename(run, aside); };
  expect_error([&] { train(every_second_step("run"), recorded); },
               {run.string(), "is gone or another one", "Nothing more is saved"});
  EXPECT_FALSE(fs::exists(run));
  EXPECT_EQ(checkpoint_steps(aside / "checkpoints"), std::vector<int64_t>{2});
  fs::rename(aside, run);
  expect_goes_on("run");
}

TEST_F(RunFaults, ASecondTrainingInTheFolderIsRefused) {
  std::string anew, resumed;
  AtStep3 recorded;
  recorded.action = [&] {
    Config second = every_second_step("run");
    anew = error_of(second);
    second.run.resume = second.run.out;
    resumed = error_of(second);
  };
  train(every_second_step("run"), recorded);
  EXPECT_NE(anew.find("exists already"), std::string::npos) << anew;
  EXPECT_NE(resumed.find("another process is training in"), std::string::npos) << resumed;
  EXPECT_TRUE(weights_of_run("run") == weights_of_run("whole"));
  EXPECT_EQ(recorded.losses(), whole_.losses());
}

}  // namespace
}  // namespace quern
