// The place of a rank, from the variables of each launcher.
#include "apps/ranks.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <map>

#include "base/error.h"

namespace quern {
namespace {

using Values = std::map<std::string, std::string>;

Variables lookup(const Values& values) {
  return [values](const std::string& name) -> std::optional<std::string> {
    const auto found = values.find(name);
    return found == values.end() ? std::nullopt : std::optional<std::string>(found->second);
  };
}

RankPlace place_of(const Values& values, const std::string& store = "") {
  return find_place(lookup(values), store);
}

// rank/size local_rank/local_size
std::string numbers(const RankPlace& place) {
  return cat(place.rank, "/", place.size, " ", place.local_rank, "/", place.local_size);
}

void expect_refusal(const Values& values, const std::string& message,
                    const std::string& store = "") {
  try {
    const RankPlace place = place_of(values, store);
    FAIL() << "expected: " << message << "\nfound: " << numbers(place) << " " << place.store;
  } catch (const UsageError& error) {
    EXPECT_NE(std::string(error.what()).find(message), std::string::npos)
        << "expected: " << message << "\nfound: " << error.what();
  }
}

std::string own_folder(const std::string& name) {
  return cat("file:/tmp/quern-", getuid(), "-", name);
}

TEST(Ranks, NoLauncherIsOneRank) {
  for (const Values& values : std::vector<Values>{{},
                                                  {{"WORLD_SIZE", "1"}},
                                                  {{"RANK", "0"}, {"WORLD_SIZE", "1"}},
                                                  {{"MASTER_ADDR", "a"}, {"MASTER_PORT", "1"}},
                                                  {{"LOCAL_RANK", "3"}}}) {
    const RankPlace place = place_of(values);
    EXPECT_EQ(numbers(place), "0/1 0/1");
    EXPECT_EQ(place.store, "");
    EXPECT_EQ(place.launcher, "");
  }
}

TEST(Ranks, OfQuernComeBeforeAllOthers) {
  const Values values = {{"QUERN_RANK", "1"},        {"QUERN_WORLD_SIZE", "4"},
                         {"QUERN_LOCAL_RANK", "1"},  {"QUERN_LOCAL_SIZE", "2"},
                         {"QUERN_STORE", "file:/a"}, {"RANK", "0"},
                         {"WORLD_SIZE", "2"}};
  const RankPlace place = place_of(values);
  EXPECT_EQ(numbers(place), "1/4 1/2");
  EXPECT_EQ(place.store, "file:/a");
  EXPECT_FALSE(place.own_store);
  EXPECT_FALSE(place.may_be_bound);
  EXPECT_EQ(place_of(values, "tcp:b:5").store, "tcp:b:5");
}

TEST(Ranks, OfQuernAreReadAsWritten) {
  const RankPlace place{
      .rank = 2, .size = 4, .local_rank = 0, .local_size = 2, .store = "tcp:a:99"};
  Values values;
  for (const std::string& variable : variables_of(place)) {
    const size_t equals = variable.find('=');
    values[variable.substr(0, equals)] = variable.substr(equals + 1);
  }
  const RankPlace found = place_of(values);
  EXPECT_EQ(numbers(found), "2/4 0/2");
  EXPECT_EQ(found.store, "tcp:a:99");
  EXPECT_FALSE(found.own_store);
}

TEST(Ranks, SetByHandNeedNoLocalNumbers) {
  const Values two = {{"QUERN_RANK", "1"}, {"QUERN_WORLD_SIZE", "2"}};
  EXPECT_EQ(numbers(place_of(two, "file:/a")), "1/2 1/2") << "a folder: one machine";
  EXPECT_EQ(numbers(place_of(two, "tcp:host:5")), "1/2 0/1") << "a port: one machine each";
  expect_refusal(two, "rank 1 of 2 has no address to meet the others; give --store tcp:HOST:PORT");
}

Values torchrun(const std::string& rank, const std::string& local_size) {
  return {{"RANK", rank},
          {"WORLD_SIZE", "4"},
          {"LOCAL_RANK", "1"},
          {"LOCAL_WORLD_SIZE", local_size},
          {"MASTER_ADDR", "node7"},
          {"MASTER_PORT", "29500"},
          {"TORCHELASTIC_USE_AGENT_STORE", "True"},
          {"TORCHELASTIC_RUN_ID", "none"},
          {"TORCHELASTIC_RESTART_COUNT", "0"},
          {"TORCHELASTIC_ERROR_FILE", "/tmp/torchelastic_a1/none_b2/attempt_0/1/error.json"}};
}

TEST(Ranks, OfTorchrunOnOneMachineMeetInAFolder) {
  const RankPlace place = place_of(torchrun("1", "4"));
  EXPECT_EQ(numbers(place), "1/4 1/4");
  EXPECT_EQ(place.launcher, "torchrun");
  EXPECT_EQ(place.store,
            own_folder("torchrun-none-29500-0--tmp-torchelastic-a1-none-b2-attempt-0"));
  EXPECT_TRUE(place.own_store);
  Values other = torchrun("3", "4");
  other["TORCHELASTIC_USE_AGENT_STORE"] = "False";  // with --standalone
  other["TORCHELASTIC_ERROR_FILE"] = "/tmp/torchelastic_a1/none_b2/attempt_0/3/error.json";
  EXPECT_EQ(place_of(other).store, place.store);
  other["TORCHELASTIC_ERROR_FILE"] = "/tmp/torchelastic_c3/none_d4/attempt_0/3/error.json";
  EXPECT_NE(place_of(other).store, place.store) << "the next start with the same port";
}

TEST(Ranks, OfTorchrunOnSeveralMachinesMeetBesideItsPort) {
  const RankPlace place = place_of(torchrun("3", "2"));
  EXPECT_EQ(numbers(place), "3/4 1/2");
  EXPECT_EQ(place.store, "tcp:node7:29501");
  Values last_port = torchrun("3", "2");
  last_port["MASTER_PORT"] = "65535";
  EXPECT_EQ(place_of(last_port).store, "tcp:node7:65534");
  Values no_agent = torchrun("3", "2");
  no_agent["TORCHELASTIC_USE_AGENT_STORE"] = "False";
  EXPECT_EQ(place_of(no_agent).store, "tcp:node7:29500");
}

TEST(Ranks, OfThePlainVariablesMeetAtTheMaster) {
  Values values = {
      {"RANK", "1"}, {"WORLD_SIZE", "2"}, {"MASTER_ADDR", "10.0.0.7"}, {"MASTER_PORT", "5000"}};
  EXPECT_EQ(place_of(values).store, "tcp:10.0.0.7:5000");
  EXPECT_EQ(numbers(place_of(values)), "1/2 0/1") << "one rank a machine";
  values["MASTER_ADDR"] = "localhost";
  EXPECT_EQ(numbers(place_of(values)), "1/2 1/2") << "all on this machine";
  values.erase("MASTER_PORT");
  expect_refusal(values, "has no address to meet the others");
}

TEST(Ranks, OfOpenMpiMeetInAFolderOfTheJob) {
  Values values = {{"OMPI_COMM_WORLD_RANK", "2"},       {"OMPI_COMM_WORLD_SIZE", "4"},
                   {"OMPI_COMM_WORLD_LOCAL_RANK", "2"}, {"OMPI_COMM_WORLD_LOCAL_SIZE", "4"},
                   {"OMPI_MCA_ess_base_jobid", "77"},   {"PMIX_RANK", "2"}};
  const RankPlace place = place_of(values);
  EXPECT_EQ(numbers(place), "2/4 2/4");
  EXPECT_EQ(place.store, own_folder("mpirun-77"));
  EXPECT_TRUE(place.own_store);
  EXPECT_TRUE(place.may_be_bound);
  values["PMIX_NAMESPACE"] = "prterun-host-12@1";
  EXPECT_EQ(place_of(values).store, own_folder("mpirun-prterun-host-12-1"));
  values["TMPDIR"] = "/scratch";
  EXPECT_TRUE(place_of(values).store.starts_with("file:/scratch/quern-"));
  values["OMPI_COMM_WORLD_LOCAL_SIZE"] = "3";
  expect_refusal(values, "ranks by Open MPI: rank 2 of 4 has no address");
  const RankPlace several = place_of(values, "tcp:head:4000");
  EXPECT_EQ(several.store, "tcp:head:4000");
  EXPECT_FALSE(several.own_store) << "rank 0 must not remove a folder of the user's";
}

// mpirun starts its helpers by srun, so Slurm's variables are the helpers'.
TEST(Ranks, OfOpenMpiComeBeforeSlurms) {
  const RankPlace place = place_of({{"OMPI_COMM_WORLD_RANK", "5"},
                                    {"OMPI_COMM_WORLD_SIZE", "8"},
                                    {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                    {"OMPI_COMM_WORLD_LOCAL_SIZE", "8"},
                                    {"PMIX_NAMESPACE", "1"},
                                    {"SLURM_STEP_ID", "0"},
                                    {"SLURM_PROCID", "1"},
                                    {"SLURM_STEP_NUM_TASKS", "2"}});
  EXPECT_EQ(numbers(place), "5/8 1/8");
}

Values slurm(const Values& more = {}) {
  Values values = {{"SLURM_JOB_ID", "4711"},
                   {"SLURM_STEP_ID", "0"},
                   {"SLURM_STEP_NUM_TASKS", "6"},
                   {"SLURM_NTASKS", "6"},
                   {"SLURM_PROCID", "5"},
                   {"SLURM_LOCALID", "1"},
                   {"SLURM_NODEID", "1"},
                   {"SLURM_STEP_NUM_NODES", "2"},
                   {"SLURM_STEP_TASKS_PER_NODE", "4,2"},
                   {"SLURM_STEP_NODELIST", "gpu[07,09]"}};
  for (const auto& [name, value] : more) values[name] = value;
  return values;
}

TEST(Ranks, OfSlurmMeetOnTheFirstMachine) {
  const RankPlace place = place_of(slurm());
  EXPECT_EQ(numbers(place), "5/6 1/2");
  EXPECT_EQ(place.store, "tcp:gpu07:22977");
  EXPECT_EQ(place_of(slurm({{"SLURM_STEP_ID", "1"}})).store, "tcp:gpu07:22978");
  EXPECT_EQ(place_of(slurm({{"SLURM_JOB_ID", "2147483647"}})).store, "tcp:gpu07:15529");
  EXPECT_EQ(place_of(slurm({{"MASTER_ADDR", "a"}, {"MASTER_PORT", "7"}})).store, "tcp:a:7");
  const Values no_list = slurm({{"SLURM_STEP_NODELIST", ""}, {"SLURM_LAUNCH_NODE_IPADDR", "10.1"}});
  EXPECT_EQ(place_of(no_list).store, "tcp:10.1:22977");
}

TEST(Ranks, OfSlurmOnOneMachineMeetInAFolder) {
  const RankPlace place = place_of(slurm({{"SLURM_STEP_NUM_NODES", "1"},
                                          {"SLURM_STEP_TASKS_PER_NODE", "6"},
                                          {"SLURM_NODEID", "0"},
                                          {"SLURM_LOCALID", "5"}}));
  EXPECT_EQ(numbers(place), "5/6 5/6");
  EXPECT_EQ(place.store, own_folder("slurm-4711-0-0"));
}

TEST(Ranks, OfSlurmAreOnlyThoseOfAStep) {
  Values shell = slurm({{"SLURM_PROCID", "0"}});  // of salloc, or the script of sbatch
  shell.erase("SLURM_STEP_ID");
  shell.erase("SLURM_STEP_NUM_TASKS");
  EXPECT_EQ(numbers(place_of(shell)), "0/1 0/1");
  shell["SLURM_STEP_ID"] = "4294967290";  // of salloc with use_interactive_step
  shell["SLURM_STEP_NUM_TASKS"] = "1";
  EXPECT_EQ(numbers(place_of(shell)), "0/1 0/1");
  const Values helper = slurm({{"PMI_RANK", "5"},
                               {"PMI_SIZE", "8"},
                               {"PMIX_NAMESPACE", "n"},
                               {"MPI_LOCALRANKID", "5"},
                               {"MPI_LOCALNRANKS", "8"}});
  EXPECT_EQ(numbers(place_of(helper)), "5/8 5/8") << "MPICH's helpers started by srun";
  EXPECT_EQ(numbers(place_of(slurm({{"PMI_RANK", "5"}, {"PMI_SIZE", "6"}}))), "5/6 1/2");
}

TEST(Ranks, OfPmiNeedAnAddress) {
  const Values values = {
      {"PMI_RANK", "1"}, {"PMI_SIZE", "2"}, {"MPI_LOCALRANKID", "1"}, {"MPI_LOCALNRANKS", "2"}};
  expect_refusal(values, "ranks by PMI: rank 1 of 2 has no address");
  EXPECT_EQ(numbers(place_of(values, "file:/a")), "1/2 1/2");
  expect_refusal({{"PMIX_RANK", "1"}}, "PMIX_RANK is 1, but the number of ranks is not known");
}

TEST(Ranks, RefusesValuesThatDoNotFit) {
  const Values good = torchrun("1", "4");
  const auto with = [&](const std::string& name, const std::string& value) {
    Values values = good;
    values[name] = value;
    return values;
  };
  const auto without = [&](const std::string& name) {
    Values values = good;
    values.erase(name);
    return values;
  };
  expect_refusal(with("RANK", "x"), "ranks by torchrun: RANK is 'x', expected a number from 0 to");
  expect_refusal(with("RANK", ""), "RANK is '', expected a number");
  expect_refusal(with("RANK", "-1"), "RANK is '-1', expected a number");
  expect_refusal(with("RANK", "1 "), "RANK is '1 ', expected a number");
  expect_refusal(with("RANK", "4"), "RANK is 4 and WORLD_SIZE is 4, expected a rank below");
  expect_refusal(with("WORLD_SIZE", "0"), "WORLD_SIZE is '0', expected a number from 1 to 65536");
  expect_refusal(with("WORLD_SIZE", "99999999999999999999"), "expected a number from 1 to 65536");
  expect_refusal(with("LOCAL_WORLD_SIZE", "8"), "LOCAL_WORLD_SIZE is 8 and WORLD_SIZE is 4");
  expect_refusal(with("LOCAL_WORLD_SIZE", "1"), "LOCAL_RANK is 1 and LOCAL_WORLD_SIZE is 1");
  expect_refusal(with("MASTER_PORT", "70000"), "MASTER_PORT is '70000', expected a number from 1");
  expect_refusal(without("RANK"), "WORLD_SIZE is 4, but RANK is not set");
  expect_refusal(without("WORLD_SIZE"), "RANK is 1, but WORLD_SIZE is not set");
  expect_refusal({{"QUERN_WORLD_SIZE", "2"}}, "QUERN_WORLD_SIZE is 2, but QUERN_RANK is not set");
  expect_refusal(slurm({{"SLURM_PROCID", "6"}}), "SLURM_PROCID is 6 and SLURM_STEP_NUM_TASKS is 6");
}

TEST(Ranks, RefusesWrongAddresses) {
  for (const char* store : {"file", "file:", "tcp:", "tcp:host", "tcp::5", "tcp:host:0",
                            "tcp:host:65536", "tcp:host:x", "host:5", "/tmp/folder"}) {
    expect_refusal({}, cat("--store is '", store, "', expected file:FOLDER or tcp:HOST:PORT"),
                   store);
  }
  for (const char* store : {"file:/a b", "tcp:host:1", "tcp:::1:65535"}) {
    EXPECT_NO_THROW(check_store("--store", store)) << store;
  }
  expect_refusal({{"QUERN_RANK", "0"}, {"QUERN_WORLD_SIZE", "2"}, {"QUERN_STORE", "x"}},
                 "QUERN_STORE is 'x'");
}

TEST(Ranks, ReadSlurmsLists) {
  const Values hosts = {{"node1", "node1"},
                        {"node1,node2", "node1"},
                        {"n[001-004]", "n001"},
                        {"n[7,9-12],g1", "n7"},
                        {"r[1-2]n[03-04]", "r1n03"},
                        {"a[2-3].b,c", "a2.b"},
                        {"", ""},
                        {"n[1", "n1"}};
  for (const auto& [list, host] : hosts) EXPECT_EQ(first_host(list), host) << list;
  EXPECT_EQ(tasks_on_node("4(x2),3", 0), 4);
  EXPECT_EQ(tasks_on_node("4(x2),3", 1), 4);
  EXPECT_EQ(tasks_on_node("4(x2),3", 2), 3);
  EXPECT_EQ(tasks_on_node("4(x2),3", 3), std::nullopt);
  EXPECT_EQ(tasks_on_node("2,5(x3)", 3), 5);
  for (const char* bad : {"", "x", "4(x", "4(x)", "0", "4(y2)", "-1", "4(x-2)"}) {
    EXPECT_EQ(tasks_on_node(bad, 0), std::nullopt) << bad;
  }
}

}  // namespace
}  // namespace quern
