# A Slurm of one node, this machine, all of whose files are in one directory. Sourced. It runs as root, because the
# daemon of a node must, and without munge and cgroups, which containers lack.

# Two that nothing listens at.
free_ports() {
  python3 -c 'import socket
sockets = [socket.socket() for _ in range(2)]
for s in sockets: s.bind(("127.0.0.1", 0))
print(*(s.getsockname()[1] for s in sockets))'
}

# start_slurm DIR: returns when the node takes jobs. Sets SLURM_CONF for the commands of Slurm.
start_slurm() {
  local dir=$1 host ports tries=0
  host=$(hostname -s)
  read -ra ports < <(free_ports)
  mkdir -p "$dir/state" "$dir/spool"
  export SLURM_CONF=$dir/slurm.conf
  cat >"$SLURM_CONF" <<CONF
ClusterName=one
SlurmctldHost=$host(127.0.0.1)
SlurmctldPort=${ports[0]}
SlurmdPort=${ports[1]}
SlurmUser=root
AuthType=auth/none
CredType=cred/none
# A requeued job waits until its old credentials are void.
AuthInfo=cred_expire=5
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SchedulerParameters=sched_interval=1,bf_interval=1,max_rpc_cnt=0
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
# Four CPUs, however many there are.
SlurmdParameters=config_overrides
KillWait=5
StateSaveLocation=$dir/state
SlurmdSpoolDir=$dir/spool
SlurmctldPidFile=$dir/slurmctld.pid
SlurmdPidFile=$dir/slurmd.pid
SlurmctldLogFile=$dir/slurmctld.log
SlurmdLogFile=$dir/slurmd.log
NodeName=$host NodeAddr=127.0.0.1 CPUs=4 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP OverSubscribe=NO
CONF
  slurmctld -D >"$dir/slurmctld.out" 2>&1 &
  SLURMCTLD=$!
  slurmd -D -N "$host" >"$dir/slurmd.out" 2>&1 &
  SLURMD=$!
  until sinfo -h -o %t 2>/dev/null | grep -q idle; do
    if ((++tries > 100)); then
      tail -n 20 "$dir"/*.log "$dir"/*.out >&2
      return 1
    fi
    sleep 0.2
  done
}

# Ends what start_slurm started.
stop_slurm() {
  scancel --full --signal=KILL --state=RUNNING 2>/dev/null
  kill "$SLURMD" "$SLURMCTLD" 2>/dev/null
  wait "$SLURMD" "$SLURMCTLD" 2>/dev/null
}
