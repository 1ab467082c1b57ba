#!/bin/bash
# An executor of Spark on Kubernetes, as Spark's driver asks for it: settings in the environment, "executor" as argument.
set -eu
java=$(command -v java)
options=()
for ((number = 0; ; number++)); do
  name=SPARK_JAVA_OPT_$number
  [ -n "${!name+set}" ] || break
  options+=("${!name}")
done
exec "$java" "${options[@]}" "-Xms$SPARK_EXECUTOR_MEMORY" "-Xmx$SPARK_EXECUTOR_MEMORY" \
  -cp "${SPARK_CLASSPATH:+$SPARK_CLASSPATH:}$SPARK_HOME/jars/*" \
  org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
  --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
  --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
  --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
