{{/* The name of the objects: at most 40 characters, so that names of pods and jobs are valid labels. */}}
{{- define "raftmq.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains .Chart.Name .Release.Name -}}
{{- .Release.Name | trunc 40 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s" (.Release.Name | trunc 33 | trimSuffix "-") .Chart.Name -}}
{{- end -}}
{{- end -}}

{{/* The name of the headless service, which gives each pod its own name in DNS. */}}
{{- define "raftmq.headless" -}}
{{- include "raftmq.fullname" . }}-brokers
{{- end -}}

{{- define "raftmq.instanceLabels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "raftmq.brokerLabels" -}}
{{ include "raftmq.instanceLabels" . }}
app.kubernetes.io/component: broker
{{- end -}}

{{- define "raftmq.labels" -}}
{{ include "raftmq.instanceLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "raftmq.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end -}}

{{/* The domain of the brokers' names inside the Kubernetes cluster. */}}
{{- define "raftmq.domain" -}}
{{ include "raftmq.headless" . }}.{{ .Release.Namespace }}.svc.{{ .Values.clusterDomain }}
{{- end -}}

{{/* The addresses of all brokers: (dict "root" $ "port" 9400). */}}
{{- define "raftmq.addresses" -}}
{{- $names := list -}}
{{- range $number := untilStep 1 (add1 (int .root.Values.replicas) | int) 1 -}}
{{- $names = append $names (printf "%s-%d.%s:%d" (include "raftmq.fullname" $.root) $number (include "raftmq.domain" $.root) (int $.port)) -}}
{{- end -}}
{{- join "," $names -}}
{{- end -}}

{{- define "raftmq.podSecurity" -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile:
    type: RuntimeDefault
{{- with .Values.image.pullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ . }}
  {{- end }}
{{- end }}
{{- end -}}

{{- define "raftmq.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
{{- end -}}

{{- define "raftmq.jobResources" -}}
resources:
  requests:
    cpu: 50m
    memory: 64Mi
  limits:
    memory: 256Mi
{{- end -}}

{{/* The pod of a command that talks to the cluster: (dict "root" $ "component" "init" "command" "    args: ...", its container's lines). */}}
{{- define "raftmq.commandPod" -}}
{{ include "raftmq.podSecurity" .root }}
{{- with .root.Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .root.Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
containers:
  - name: {{ .component }}
    image: {{ include "raftmq.image" .root | quote }}
    imagePullPolicy: {{ .root.Values.image.pullPolicy }}
    {{- .command | nindent 4 }}
    env:
      - name: RAFTMQ_BOOTSTRAP_SERVERS
        value: {{ include "raftmq.addresses" (dict "root" .root "port" 9400) | quote }}
    terminationMessagePolicy: FallbackToLogsOnError
    {{- include "raftmq.containerSecurity" .root | nindent 4 }}
    {{- include "raftmq.jobResources" .root | nindent 4 }}
    volumeMounts:
      - name: tmp
        mountPath: /tmp
volumes:
  - name: tmp
    emptyDir:
      sizeLimit: 64Mi
{{- end -}}
